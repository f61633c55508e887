// Dark or light: as the system has it, until someone chooses. Runs before the page is painted.
"use strict";
{
  const root = document.documentElement;
  const chosen = localStorage.getItem("llamasrv:theme");
  if (chosen) root.dataset.theme = chosen;
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme-button").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("llamasrv:theme", root.dataset.theme);
      dispatchEvent(new Event("themechange"));
    });
  });
}
