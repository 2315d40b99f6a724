// The service worker: shows what web push brings, and opens the page it is about.
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("push", (event) => {
  const told = event.data?.json() ?? {};
  event.waitUntil(self.registration.showNotification(told.title ?? "QTS", {
    body: told.body ?? "",
    icon: "/page/icon.svg",
    tag: told.eventId, // the same event twice is one notification
    requireInteraction: told.severity === "critical",
    data: { link: told.deepLink ?? "/" },
  }));
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const place = `/#${event.notification.data.link}`;
  event.waitUntil((async () => {
    const [open] = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
    if (!open) return self.clients.openWindow(place);
    await open.focus();
    return open.navigate(place);
  })());
});
