"""Small handwritten PDF files."""

from __future__ import annotations


def pdf(*pages: str, picture: bytes | None = None, extra: str = "") -> bytes:
    """A page for each text; "" with `picture` (a JPEG) is a page that shows only that."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    objects: list[bytes] = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", font]
    kids = []
    image = None
    if picture is not None:
        head = b"<< /Type /XObject /Subtype /Image /Width 8 /Height 8 /ColorSpace /DeviceRGB /BitsPerComponent 8"
        objects.append(head + b" /Filter /DCTDecode /Length %d >>\nstream\n%b\nendstream" % (len(picture), picture))
        image = len(objects)
    for text in pages:
        shown = "/I Do" if image and not text else " ".join(f"({line}) Tj 0 -14 Td" for line in text.split("\n"))
        content = f"BT /F 12 Tf 50 700 Td {shown} ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content))
        resources = "/Font << /F 3 0 R >>" + (f" /XObject << /I {image} 0 R >>" if image else "")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources << {resources} >> "
            f"/Contents {len(objects)} 0 R {extra} >>".encode()
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    out, places = b"%PDF-1.4\n", []
    for number, value in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, value)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    tail = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer << /Size {len(objects) + 1} /Root 1 0 R >>"
    return out + tail.encode() + b"\nstartxref\n%d\n%%%%EOF\n" % len(out)
