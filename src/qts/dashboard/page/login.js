// The token comes after the # of the link, which browsers do not send, or from the input field.
// Its texts stand here, because nothing else is served before the login.
const TEXTS = {
  en: { message: "Paste a token, or open the link that this command prints: qts dashboard --link admin", token: "Token", enter: "Log in", 401: "This token is not known.", 429: "Too many failed logins: wait a minute.", lost: "No connection to QTS." },
  ko: { message: "토큰을 붙여 넣거나 다음 명령이 출력하는 링크를 여세요: qts dashboard --link admin", token: "토큰", enter: "로그인", 401: "알 수 없는 토큰입니다.", 429: "로그인 실패가 너무 많습니다. 1분 후 다시 시도하세요.", lost: "QTS에 연결할 수 없습니다." },
};
const language = localStorage.getItem("qts-language") ?? (navigator.language.startsWith("ko") ? "ko" : "en");
const text = TEXTS[language] ?? TEXTS.en;
document.documentElement.lang = language;
document.documentElement.dataset.theme = localStorage.getItem("qts-theme") ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");

const message = document.getElementById("message");
const field = document.getElementById("token");

async function login(given) {
  const token = given.slice(given.indexOf("#") + 1).trim(); // of a token, or of a whole link
  try {
    const reply = await fetch("/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    if (reply.ok) {
      location.replace("/");
      return;
    }
    message.textContent = text[reply.status] ?? (await reply.json()).error;
  } catch {
    message.textContent = text.lost;
  }
  message.className = "bad";
}

async function followLink() {
  const token = location.hash.slice(1);
  if (!token) return;
  history.replaceState(null, "", "/login");
  await login(token);
}

message.textContent = text.message;
document.getElementById("token-label").textContent = text.token;
document.getElementById("enter").textContent = text.enter;
document.getElementById("enter").addEventListener("click", () => login(field.value));
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter") login(field.value);
});
window.addEventListener("hashchange", followLink); // a link pasted on this page changes only its #
await followLink();
