// The records of one namespace, in one Durable Object with SQLite storage, and the Worker in front of it.
//
// Promise: a swap is one statement in a single-threaded object, and its answer leaves only once it is stored (output
// gates); who does not know LEASEHOLD_TOKEN learns and changes nothing; a request that is wrong in any way is refused
// with 4xx and changes nothing; an object that was only read stores nothing. Non-promise: it decides nothing about
// ownership, and a hint of `watch` may be lost.
//
//   POST .../v1/NAMESPACE/read    {shelf, name}                  {now, value: {revision, bytes} | null}
//   POST .../v1/NAMESPACE/swap    {shelf, name, expected, next}  {now, revision: string | null}
//   POST .../v1/NAMESPACE/erase   {shelf, name, expected}        {now, revision: string | null}
//   POST .../v1/NAMESPACE/list    {shelf, after, limit}          {now, entries: [{name, revision, bytes}], more}
//   POST .../v1/NAMESPACE/watch   {shelf, name}                  a stream: `h` is a hint, `.` a sign of life
//   POST .../v1/NAMESPACE/survey  {}                             {now, protocol, made, bytes}
//
// `revision: null` says that the record did not have the expected one. Values are base64; `now` is in milliseconds.

interface Rows {
  toArray(): Record<string, unknown>[];
}

interface State {
  storage: { sql: { exec(query: string, ...bindings: unknown[]): Rows; databaseSize: number } };
}

interface Binding {
  idFromName(name: string): unknown;
  get(id: unknown): { fetch(request: Request): Promise<Response> };
}

interface Env {
  NAMESPACES: Binding;
  LEASEHOLD_TOKEN?: string;
}

type Reader = ReadableStreamDefaultReader<Uint8Array> | undefined;
type Fields = Record<string, unknown>;
type Listener = ReadableStreamDefaultController<Uint8Array>;

const PROTOCOL = 1;
/** Far more than any record needs, far less than an object's memory. */
const MAX_BODY_BYTES = 1024 * 1024;
/** So much of a refused request is still read: who is cut off while sending never hears the refusal. */
const MAX_DRAINED_BYTES = 8 * 1024 * 1024;
const MAX_PAGE = 1000;
/** A page's values together; a longer listing goes on in the next. */
const MAX_PAGE_BYTES = 8 * 1024 * 1024;
const MAX_LISTENERS = 10_000;
const SIGN_OF_LIFE_MS = 15_000;
const NAMESPACE = /^[a-z0-9][a-z0-9-]{0,39}$/;
const NAME = /^[A-Za-z0-9._\/-]{1,200}$/;
const SHELF = /^[a-z]{1,20}$/;
/** Records of these shelves are never erased. */
const PERMANENT = ["lease", "fence", "namespace"];
const OPERATIONS: Record<string, string[]> = {
  read: ["shelf", "name"],
  swap: ["shelf", "name", "expected", "next"],
  erase: ["shelf", "name", "expected"],
  list: ["shelf", "after", "limit"],
  watch: ["shelf", "name"],
  survey: [],
};
const TABLE = `CREATE TABLE IF NOT EXISTS record
  (shelf TEXT NOT NULL, name TEXT NOT NULL, revision TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (shelf, name))`;

/** A request that is refused, and why. */
class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export default {
  async fetch(request: Request, env: Env): Promise<Response> {
    const reader = request.body?.getReader();
    try {
      await admit(request, env);
      const [namespace, operation] = route(request);
      const body = await bounded(reader);
      const object = env.NAMESPACES.get(env.NAMESPACES.idFromName(namespace));
      // Awaited here, so that a failure of the object is answered, too.
      return await object.fetch(new Request(`https://object/${operation}`, { method: "POST", body }));
    } catch (error) {
      await drain(reader);
      return refusal(error);
    }
  },
};

/** Lets only those in who know the token. Digests are compared: they have one length, and the compare takes one time. */
async function admit(request: Request, env: Env): Promise<void> {
  if (!env.LEASEHOLD_TOKEN) {
    throw new Refused(501, "this worker has no LEASEHOLD_TOKEN; set it: wrangler secret put LEASEHOLD_TOKEN");
  }
  const given = request.headers.get("authorization") ?? "";
  const [one, other] = await Promise.all([digest(given), digest(`Bearer ${env.LEASEHOLD_TOKEN}`)]);
  let difference = 0;
  for (let at = 0; at < one.length; at++) {
    difference |= one[at] ^ other[at];
  }
  if (difference !== 0) {
    throw new Refused(401, "the bearer token is not this worker's LEASEHOLD_TOKEN");
  }
}

async function digest(text: string): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

/** The namespace and the operation: the last two parts of the path, so that the worker may live below any route. */
function route(request: Request): [string, string] {
  const parts = new URL(request.url).pathname.split("/");
  const [version, namespace, operation] = parts.slice(-3);
  if (version !== "v1" || !Object.hasOwn(OPERATIONS, operation)) {
    throw new Refused(404, "no such operation");
  }
  if (!NAMESPACE.test(namespace)) {
    throw new Refused(400, "the namespace is not one");
  }
  if (request.method !== "POST") {
    throw new Refused(405, "operations are posted");
  }
  return [namespace, operation];
}

/** The body, kept no further than allowed. */
async function bounded(reader: Reader): Promise<ArrayBuffer> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for (;;) {
    const { done, value } = reader ? await reader.read() : { done: true, value: undefined };
    if (done || value === undefined) {
      break;
    }
    length += value.length;
    if (length > MAX_BODY_BYTES) {
      throw new Refused(413, "the request is too large");
    }
    parts.push(value);
  }
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole.buffer;
}

/** Reads what is left of a refused request, within bounds, and drops it. */
async function drain(reader: Reader): Promise<void> {
  try {
    for (let length = 0; reader && length < MAX_DRAINED_BYTES; ) {
      const { done, value } = await reader.read();
      if (done) {
        return;
      }
      length += value.length;
    }
  } catch {
    // Who sent it is gone.
  }
}

function refusal(error: unknown): Response {
  if (error instanceof Refused) {
    return answer(error.status, { error: error.message });
  }
  // Whether a write was done is not known to the one who asked.
  return answer(503, { error: "the object failed" });
}

function answer(status: number, body: unknown): Response {
  const headers = { "content-type": "application/json", "cache-control": "no-store", date: new Date().toUTCString() };
  return new Response(JSON.stringify(body), { status, headers });
}

export class LeaseholdNamespace {
  private readonly sql: State["storage"]["sql"];
  private readonly listeners = new Map<string, Set<Listener>>();
  private count = 0;
  private pulse: ReturnType<typeof setInterval> | undefined;
  private made = false;

  constructor(state: State) {
    this.sql = state.storage.sql;
  }

  async fetch(request: Request): Promise<Response> {
    try {
      const operation = new URL(request.url).pathname.slice(1);
      const fields = parse(await request.text(), OPERATIONS[operation]);
      // From here on nothing waits: no other request comes between.
      switch (operation) {
        case "read":
          return answer(200, this.read(shelf(fields), name(fields, "name")));
        case "swap":
          return answer(200, this.swap(shelf(fields), name(fields, "name"), expected(fields), bytes(fields)));
        case "erase":
          return answer(200, this.erase(shelf(fields), name(fields, "name"), expected(fields)));
        case "list":
          return answer(200, this.list(shelf(fields), fields.after === null ? "" : name(fields, "after"), limit(fields)));
        case "watch":
          return this.watch(`${shelf(fields)}:${name(fields, "name")}`);
        default:
          return answer(200, { now: Date.now(), protocol: PROTOCOL, made: this.isMade(), bytes: this.sql.databaseSize });
      }
    } catch (error) {
      return refusal(error);
    }
  }

  private read(shelf: string, name: string): unknown {
    const now = Date.now();
    if (!this.isMade()) {
      return { now, value: null };
    }
    const [row] = this.sql.exec("SELECT revision, value FROM record WHERE shelf = ? AND name = ?", shelf, name).toArray();
    return { now, value: row ? { revision: row.revision, bytes: encode(row.value as ArrayBuffer) } : null };
  }

  private swap(shelf: string, name: string, expected: string | null, next: Uint8Array): unknown {
    if (expected !== null && !this.isMade()) {
      return { now: Date.now(), revision: null };
    }
    this.make();
    // Random, so that it never comes again, not even after the object's storage was set back to an earlier time.
    const revision = crypto.randomUUID();
    const rows =
      expected === null
        ? this.sql.exec(
            "INSERT INTO record (shelf, name, revision, value) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING revision",
            shelf, name, revision, next,
          )
        : this.sql.exec(
            "UPDATE record SET revision = ?, value = ? WHERE shelf = ? AND name = ? AND revision = ? RETURNING revision",
            revision, next, shelf, name, expected,
          );
    return this.outcome(rows, `${shelf}:${name}`, revision);
  }

  private erase(shelf: string, name: string, expected: string | null): unknown {
    if (PERMANENT.includes(shelf)) {
      throw new Refused(400, `a record of shelf ${shelf} is never erased`);
    }
    if (!this.isMade()) {
      return { now: Date.now(), revision: null };
    }
    const erase = "DELETE FROM record WHERE shelf = ? AND name = ? AND revision = ? RETURNING revision";
    return this.outcome(this.sql.exec(erase, shelf, name, expected), `${shelf}:${name}`, expected);
  }

  private outcome(rows: Rows, key: string, revision: string | null): unknown {
    const isDone = rows.toArray().length === 1;
    if (isDone) {
      this.hint(key);
    }
    return { now: Date.now(), revision: isDone ? revision : null };
  }

  private list(shelf: string, after: string, limit: number): unknown {
    const now = Date.now();
    const entries: unknown[] = [];
    if (!this.isMade()) {
      return { now, entries, more: false };
    }
    const list = "SELECT name, revision, value FROM record WHERE shelf = ? AND name > ? ORDER BY name LIMIT ?";
    const rows = this.sql.exec(list, shelf, after, limit + 1).toArray();
    let size = 0;
    for (const row of rows) {
      size += (row.value as ArrayBuffer).byteLength;
      if (entries.length === limit || (entries.length > 0 && size > MAX_PAGE_BYTES)) {
        break;
      }
      entries.push({ name: row.name, revision: row.revision, bytes: encode(row.value as ArrayBuffer) });
    }
    return { now, entries, more: entries.length < rows.length };
  }

  private watch(key: string): Response {
    if (this.count >= MAX_LISTENERS) {
      throw new Refused(429, "too many listen already");
    }
    let own: Listener;
    const body = new ReadableStream<Uint8Array>({
      start: (listener) => {
        own = listener;
        const listeners = this.listeners.get(key) ?? new Set();
        this.listeners.set(key, listeners.add(listener));
        this.count += 1;
        this.pulse ??= setInterval(() => this.live(), SIGN_OF_LIFE_MS);
        // What changed before this is for the listener to read.
        this.send(key, listener, "h");
      },
      cancel: () => this.forget(key, own),
    });
    return new Response(body, { headers: { "content-type": "text/plain", date: new Date().toUTCString() } });
  }

  private hint(key: string): void {
    for (const listener of this.listeners.get(key) ?? []) {
      this.send(key, listener, "h");
    }
  }

  private live(): void {
    for (const [key, listeners] of this.listeners) {
      for (const listener of listeners) {
        this.send(key, listener, ".");
      }
    }
  }

  private send(key: string, listener: Listener, mark: string): void {
    try {
      listener.enqueue(new TextEncoder().encode(mark));
    } catch {
      this.forget(key, listener);
    }
  }

  private forget(key: string, listener: Listener): void {
    const listeners = this.listeners.get(key);
    if (!listeners?.delete(listener)) {
      return;
    }
    this.count -= 1;
    if (listeners.size === 0) {
      this.listeners.delete(key);
    }
    if (this.count === 0) {
      clearInterval(this.pulse);
      this.pulse = undefined;
    }
  }

  private isMade(): boolean {
    this.made ||= this.sql.exec("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'record'").toArray().length > 0;
    return this.made;
  }

  private make(): void {
    if (!this.made) {
      this.sql.exec(TABLE);
    }
  }
}

/** The fields of a request: all that belong to the operation, and no others. */
function parse(text: string, wanted: string[] | undefined): Fields {
  let fields: unknown;
  try {
    fields = JSON.parse(text);
  } catch {
    throw new Refused(400, "the request is not JSON");
  }
  if (typeof fields !== "object" || fields === null || Array.isArray(fields) || wanted === undefined) {
    throw new Refused(400, "the request is not an object");
  }
  const given = Object.keys(fields);
  if (given.length !== wanted.length || !wanted.every((field) => Object.hasOwn(fields as object, field))) {
    throw new Refused(400, `the request needs the fields: ${wanted.join(", ")}`);
  }
  return fields as Fields;
}

function shelf(fields: Fields): string {
  if (typeof fields.shelf !== "string" || !SHELF.test(fields.shelf)) {
    throw new Refused(400, "the shelf is not one");
  }
  return fields.shelf;
}

function name(fields: Fields, field: string): string {
  const name = fields[field];
  if (typeof name !== "string" || !NAME.test(name)) {
    throw new Refused(400, `\`${field}\` is not a name`);
  }
  return name;
}

function expected(fields: Fields): string | null {
  const { expected } = fields;
  if (expected !== null && (typeof expected !== "string" || expected.length > 100)) {
    throw new Refused(400, "`expected` is not a revision");
  }
  return expected as string | null;
}

function limit(fields: Fields): number {
  const { limit } = fields;
  if (typeof limit !== "number" || !Number.isInteger(limit) || limit < 0) {
    throw new Refused(400, "`limit` is not a count");
  }
  return Math.min(limit, MAX_PAGE);
}

function bytes(fields: Fields): Uint8Array {
  try {
    if (typeof fields.next === "string") {
      return Uint8Array.from(atob(fields.next), (letter) => letter.charCodeAt(0));
    }
  } catch {
    // Said below.
  }
  throw new Refused(400, "`next` is not base64");
}

function encode(value: ArrayBuffer): string {
  const bytes = new Uint8Array(value);
  let text = "";
  // In parts: a call takes only so many arguments.
  for (let at = 0; at < bytes.length; at += 8192) {
    text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  }
  return btoa(text);
}
