// Service worker: shows push messages and opens the page they link to.
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("push", (event) => {
  const message = event.data?.json() ?? {};
  event.waitUntil(self.registration.showNotification(message.title ?? "QTS", {
    body: message.body ?? "",
    icon: "/page/icon.svg",
    tag: message.eventId, // the same event twice is one notification
    requireInteraction: message.severity === "critical",
    data: { link: message.deepLink ?? "/" },
  }));
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const url = `/#${event.notification.data.link}`;
  event.waitUntil((async () => {
    const [open] = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
    if (!open) return self.clients.openWindow(url);
    await open.focus();
    return open.navigate(url);
  })());
});
