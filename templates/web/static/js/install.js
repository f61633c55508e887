// Without the server the playground still opens: a service worker keeps what it consists of. Browsers have service
// workers on https and on localhost only.

export async function beginOffline() {
  if (!navigator.serviceWorker) return;
  const worker = new URL("../offline.js", import.meta.url);
  const { active } = await navigator.serviceWorker.register(worker, { scope: "/" }).then(() => navigator.serviceWorker.ready);
  const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
  active.postMessage([location.origin + "/", ...loaded]);
}
