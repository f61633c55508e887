// The panels beside the conversation. On narrow screens both are drawers, one open at a time; on wide ones the
// conversations are always there, and the settings when they are asked for.

import { byId } from "./server.js";

const DRAWERS = ["talks", "settings"];
const KEPT = "llamasrv:settings-open";
const narrow = matchMedia("(max-width: 60rem)");

/** Opens or closes one. `on`: which of both; absent: the other of what it is. */
export function toggleDrawer(name, on) {
  const open = on ?? !byId(name).classList.contains("open");
  const hasFocus = byId(name).contains(document.activeElement);
  const others = narrow.matches ? DRAWERS : [name];
  for (const drawer of others) {
    byId(drawer).classList.toggle("open", drawer === name && open);
    byId(`${drawer}-button`).setAttribute("aria-expanded", String(drawer === name && open));
  }
  byId("curtain").hidden = !(open && narrow.matches);
  if (name === "settings" && !narrow.matches) localStorage.setItem(KEPT, open ? "yes" : "");
  if (open && (narrow.matches || name === "settings")) byId(name).querySelector("button, input, textarea")?.focus();
  if (!open && hasFocus) byId(`${name}-button`).focus();
}

/** Whether one was open over the conversation; the focus goes back to its button. */
export function closeDrawers() {
  const open = narrow.matches && DRAWERS.find((name) => byId(name).classList.contains("open"));
  if (!open) return false;
  toggleDrawer(open, false);
  byId(`${open}-button`).focus();
  return true;
}

function fit() {
  for (const name of DRAWERS) {
    const open = !narrow.matches && name === "settings" && localStorage.getItem(KEPT) === "yes";
    byId(name).classList.toggle("open", open);
    byId(`${name}-button`).setAttribute("aria-expanded", String(open));
  }
  byId("curtain").hidden = true;
}

export function beginDrawers() {
  for (const name of DRAWERS) byId(`${name}-button`).addEventListener("click", () => toggleDrawer(name));
  byId("curtain").addEventListener("click", closeDrawers);
  narrow.addEventListener("change", fit);
  fit();
}
