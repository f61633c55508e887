// The playground's service worker: without the server, the page itself still opens, with the conversations that the
// browser keeps. Whatever the server answers is newer than what is kept here, and comes first.

const KEPT = "llamasrv";
const PAGE = "/";

const isShell = (url) => url.origin === location.origin && (url.pathname === PAGE || url.pathname.startsWith("/ui/static/"));

async function keep(request, response) {
  if (response.ok && !response.redirected) await (await caches.open(KEPT)).put(request, response.clone());
  return response;
}

async function answer(request) {
  try {
    return await keep(request, await fetch(request));
  } catch (error) {
    const kept = await caches.match(request, { ignoreVary: true });
    if (kept) return kept;
    throw error;
  }
}

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  if (event.request.method === "GET" && isShell(new URL(event.request.url))) event.respondWith(answer(event.request));
});

/** What the page had loaded before this worker was there. Files of earlier versions make room. */
self.addEventListener("message", (event) => {
  const shell = [...new Set(event.data)].filter((address) => isShell(new URL(address)));
  event.waitUntil(
    (async () => {
      const cache = await caches.open(KEPT);
      const paths = new Set(shell.map((address) => new URL(address).pathname));
      for (const request of await cache.keys()) {
        if (!paths.has(new URL(request.url).pathname)) await cache.delete(request);
      }
      await cache.addAll(shell.map((address) => new Request(address, { headers: { accept: "text/html, */*" } })));
    })(),
  );
});
