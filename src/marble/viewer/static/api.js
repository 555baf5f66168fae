// Asking the server: JSON or an error that says what went wrong.

export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { accept: "application/json", ...options.headers } });
  if (answer.status === 503) {
    const seconds = Number(answer.headers.get("retry-after") || 2);
    await new Promise((done) => setTimeout(done, 1000 * seconds));
    return ask(path, options);
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || `the server answered ${answer.status}`);
  return body;
}
