// On narrow screens the two panels beside the conversation are drawers: one button each, one open at a time.

import { byId } from "./server.js";

const DRAWERS = ["talks", "settings"];
const narrow = matchMedia("(max-width: 60rem)");

/** Opens or closes one. `on`: which of both; absent: the other of what it is. */
export function toggleDrawer(name, on) {
  if (!narrow.matches) return;
  const open = on ?? !byId(name).classList.contains("open");
  for (const drawer of DRAWERS) {
    byId(drawer).classList.toggle("open", drawer === name && open);
    byId(`${drawer}-button`).setAttribute("aria-expanded", String(drawer === name && open));
  }
  byId("curtain").hidden = !open;
  if (open) byId(name).querySelector("button, input, summary")?.focus();
}

/** Whether one was open; the focus goes back to its button. */
export function closeDrawers() {
  const open = DRAWERS.find((name) => byId(name).classList.contains("open"));
  if (!open) return false;
  toggleDrawer(open, false);
  byId(`${open}-button`).focus();
  return true;
}

export function beginDrawers() {
  for (const name of DRAWERS) byId(`${name}-button`).addEventListener("click", () => toggleDrawer(name));
  byId("curtain").addEventListener("click", closeDrawers);
  narrow.addEventListener("change", () => {
    for (const name of DRAWERS) byId(name).classList.remove("open");
    byId("curtain").hidden = true;
  });
}
