// Drawing a part of a page again without taking away what someone is about to press.

/** What makes a node the same as before: its `data-key`; of a button, what it says. */
const nameOf = (node) => `${node.nodeName} ${node.dataset?.key ?? (node.nodeName === "BUTTON" ? node.getAttribute("aria-label") ?? node.textContent : "")}`;

/** Makes the children of `parent` those in `wanted`. What was there already stays, with its focus and with a press that has
 * begun, and takes over text, attributes and `onclick` of its new version. Not for fields that people fill in. */
export function redraw(parent, wanted) {
  const there = new Map();
  for (const node of parent.childNodes) there.set(nameOf(node), [...(there.get(nameOf(node)) ?? []), node]);
  const kept = wanted.map((node) => {
    const old = there.get(nameOf(node))?.shift();
    return old ? renewed(old, node) : node;
  });
  for (const node of [...there.values()].flat()) node.remove();
  for (const [i, node] of kept.entries()) {
    if (parent.childNodes[i] !== node) parent.insertBefore(node, parent.childNodes[i] ?? null);
  }
}

function renewed(old, made) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return old;
  }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) {
    if (name === "style") old.style.cssText = value; // the policy forbids the attribute
    else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  old.onclick = made.onclick;
  redraw(old, [...made.childNodes]);
  return old;
}
