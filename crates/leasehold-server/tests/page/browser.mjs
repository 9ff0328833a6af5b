// What a person does with the page. Called by driver.rs for a test, which says where the server is and plays everybody else.
import { strict as assert } from "node:assert";
import { mkdtempSync, rmSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { URL: url, KEY: key, READER: reader, ROAMING: roaming, EXPIRED: expired, DEAD: dead, DONE: done, SHOTS: shots }
  = process.env;
const { chromium } = await import(process.env.PLAYWRIGHT);
const axe = readFileSync(process.env.AXE, "utf8");

const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function ask(what) {
  console.log(`ask ${what}`);
  const { value } = await answers.next();
  assert.equal(value, "done");
}

const profile = mkdtempSync(join(tmpdir(), "leasehold-page-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM,
  headless: true,
  viewport: { width: 1180, height: 760 },
  timezoneId: "Europe/Berlin",
  locale: "en-GB",
  javaScriptEnabled: process.argv[2] !== "plain",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync"],
});

// The machine may be busy with other tests.
context.setDefaultTimeout(60_000);

// Nothing is asked of other hosts, nothing is blocked by our own policy, and no script fails.
const faults = [];
context.on("request", (request) => {
  if (!request.url().startsWith(url) && !request.url().startsWith("data:")) faults.push(`asked ${request.url()}`);
});
context.on("console", (message) => {
  // A page that is refused on purpose is told on the console too.
  if (message.type() === "error" && !/status of 4\d\d/.test(message.text())) faults.push(message.text());
});
context.on("weberror", (error) => faults.push(String(error.error())));
context.on("page", (page) => page.on("dialog", (dialog) => faults.push(`dialog ${dialog.message()}`)));

async function signIn(page, withKey) {
  await page.goto(`${url}/`);
  await page.getByLabel("Key").fill(withKey);
  await page.getByRole("button", { name: "Sign in" }).click();
}

const acts = {
  async operator() {
    const page = context.pages()[0];
    for (const [wrong, says] of [["lh_r_nonsense", "not a valid key"], [expired, "has expired"]]) {
      await signIn(page, wrong);
      await page.getByRole("alert").getByText(says).waitFor();
    }
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    const row = page.locator('[id="l-watched"]');
    await row.getByText("first (box-1").waitFor();
    await page.evaluate(() => { window.isTheSame = true; });
    await ask("change hands");
    await row.getByText("second (box-2").waitFor();
    assert.equal(await page.evaluate(() => window.isTheSame), true, "the page was loaded again");

    // Type to filter, without loading the page again.
    await page.getByRole("searchbox").pressSequentially("team-b", { delay: 20 });
    await page.locator('[id="l-watched"]').waitFor({ state: "detached" });
    assert.equal(await page.locator("tbody tr").count(), 3);
    assert.match(page.url(), /q=team-b/);
    assert.equal(await page.evaluate(() => window.isTheSame), true);

    // A slow answer to what was typed first does not replace the one to what was typed last.
    let release;
    const isHeld = new Promise((done) => { release = done; });
    await page.route("**/leases?q=te", async (route) => {
      await isHeld;
      await route.continue();
    });
    await page.goto(`${url}/ns/default/leases`);
    const asked = page.waitForRequest((request) => request.url().endsWith("?q=te"));
    await page.getByRole("searchbox").fill("te");
    await asked;
    await page.getByRole("searchbox").fill("team-b");
    await page.locator('[id="l-watched"]').waitFor({ state: "detached" });
    const answered = page.waitForResponse((response) => response.url().endsWith("?q=te"));
    release();
    await answered;
    await page.evaluate(() => new Promise((done) => setTimeout(done, 100)));
    assert.equal(await page.locator("tbody tr").count(), 3, "an answer to `te` is shown for `team-b`");
    await page.unroute("**/leases?q=te");

    // A reason is as long as the store counts it.
    await page.goto(`${url}/ns/default/lease/watched`);
    await page.getByText("Revoke…").click();
    await page.locator("#revoke-why").fill("\u0436".repeat(300));
    assert.match(await page.locator("#revoke-why").evaluate((why) => why.validationMessage), /600 bytes/);

    // Revoke, with a why.
    await page.goto(`${url}/ns/default/lease/watched`);
    // Buttons stay where they are when a form opens, and one form is open at a time.
    const places = () => page.locator("summary, button.order").evaluateAll((all) => all.map((one) => {
      const { x, y } = one.getBoundingClientRect();
      return [one.textContent, Math.round(x), Math.round(y + scrollY)];
    }));
    const before = await places();
    for (const label of ["Ask to finish…", "Hand off…", "Pause…"]) {
      await page.getByText(label).click();
      assert.deepEqual(await places(), before, label);
      assert.equal(await page.locator(".order[open]").count(), 1);
    }
    await page.getByText("Revoke…").click();
    await page.locator("#revoke-why").fill("disk of box-2 is full");
    await page.getByRole("button", { name: "Revoke at epoch 2" }).click();
    await page.getByRole("status").getByText("Revoked.").waitFor();
    await page.locator("#e3").getByText("disk of box-2 is full").waitFor();
    await ask("revoked");

    // A form that was opened before the lease moved on is refused, and the page shows what is so now.
    await page.getByText("Pause…").click();
    await page.locator("#pause-why").fill("freeze");
    await ask("move on behind the form");
    await page.locator("#e4").getByText("third (box-3").waitFor();
    assert.equal(await page.locator("#pause-why").inputValue(), "freeze", "what was typed is gone");
    await page.getByRole("button", { name: "Pause at epoch 3" }).click();
    await page.getByRole("alert").getByText("Nothing was done").waitFor();
    await page.getByText("third (box-3").first().waitFor();

    // Retry a dead letter, by keyboard alone.
    await page.goto(`${url}/ns/default/queue/mail`);
    await page.getByText("550 mailbox unavailable").waitFor();
    await page.goto(`${url}/ns/default/item/mail/${dead}`);
    await page.locator("#order-retry summary").focus();
    await page.keyboard.press("Enter");
    await page.keyboard.press("Tab");
    await page.keyboard.type("mailbox is back");
    await page.keyboard.press("Enter");
    await page.getByRole("status").getByText("Back in line").waitFor();
    await page.locator("#facts .state").getByText("ready").waitFor();

    // Stopped, nothing is asked; started again, it is current.
    await page.goto(`${url}/ns/default/leases`);
    await page.getByRole("button", { name: "Stop updating" }).click();
    await page.locator("#live").getByText(/^Not updating since \d\d:\d\d$/).waitFor();
    await page.getByRole("button", { name: "Update again" }).click();
    await page.locator("#live").getByText("Live").waitFor();

    // Times are said in the viewer's own zone.
    const time = page.locator('[id="l-watched"] time').first();
    assert.match(await time.getAttribute("title"), /CET|GMT\+1|CEST|GMT\+2/);

    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Key").waitFor();
    await signIn(page, reader);
    await page.waitForURL("**/ns/default/leases");
    await page.goto(`${url}/ns/default/lease/watched`);
    assert.equal(await page.locator(".order").count(), 0);
  },

  // Without a connection the page says since when, dims what it shows and takes no orders; then it is current again.
  async cut() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    await page.goto(`${url}/ns/default/lease/watched`);
    await page.locator("#live").getByText("Live").waitFor();
    assert.equal(await page.locator("#cut").isVisible(), false);
    await context.setOffline(true);
    await ask("change hands");
    await page.getByRole("button", { name: "Stop updating" }).click();
    await page.getByRole("button", { name: "Update again" }).click();
    await page.locator("#cut").filter({ hasText: /^Not connected since \d\d:\d\d:\d\d\. What you see is from then\.$/ }).waitFor();
    assert.equal(await page.locator(".orders").evaluate((orders) => orders.inert), true);
    assert.ok(await page.locator("#facts").evaluate((facts) => Number(getComputedStyle(facts).opacity)) < 1);
    await context.setOffline(false);
    await page.locator("#facts").getByText("second (box-2").waitFor();
    await page.locator("#cut").waitFor({ state: "hidden" });
    assert.equal(await page.locator(".orders").evaluate((orders) => orders.inert), false);
    // What the browser says of the requests that failed is no fault of the page.
    faults.splice(0, faults.length, ...faults.filter((fault) => !/ERR_INTERNET_DISCONNECTED/.test(fault)));
  },

  // A lease is revoked while a job runs under it elsewhere.
  async job() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    await page.goto(`${url}/ns/default/lease/nightly`);
    await page.getByText("Revoke…").click();
    await page.locator("#revoke-why").fill("it reads the wrong input");
    await page.getByRole("button", { name: "Revoke at epoch 1" }).click();
    await page.getByRole("status").getByText("Revoked.").waitFor();
    await ask("the job is dead");
    await page.locator("#e1").getByText("evicted").waitFor();
    await page.locator("#counts div").filter({ hasText: "Taken away by an operator" }).getByText("1").waitFor();
  },

  // A link in a chat or a mail leads to the page, although the browser keeps the cookie back.
  async link() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    let opened = 0;
    context.on("request", (request) => { if (request.url().endsWith("/lease/watched") && request.isNavigationRequest()) opened += 1; });
    await page.goto(`data:text/html,<a href="${url}/ns/default/lease/watched">look</a>`);
    await page.getByText("look").click();
    await page.locator("#facts").getByText("first (box-1").waitFor();
    assert.equal(opened, 2, "the browser did not come from elsewhere");
    // Signed out, it is asked for the key once, and comes to the page.
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Key").waitFor();
    await page.goto(`data:text/html,<a href="${url}/ns/default/lease/watched">look</a>`);
    await page.getByText("look").click();
    await page.getByLabel("Key").fill(key);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator("#facts").getByText("first (box-1").waitFor();
  },

  // What an item has only once it is done appears on a page that was open before.
  async done() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    await page.goto(`${url}/ns/default/item/mail/${dead}`);
    await page.locator("#facts .state").getByText("claimed").waitFor();
    assert.equal(await page.locator("#follow-ups, #result").count(), 0);
    await page.evaluate(() => { window.isTheSame = true; });
    await ask("complete it");
    await page.locator("#follow-ups").getByText("archive").waitFor();
    await page.locator("#result").getByText("bytes, hidden").waitFor();
    assert.equal(await page.evaluate(() => window.isTheSame), true, "the page was loaded again");
    const order = await page.locator("main > section").evaluateAll((all) => all.map(({ id }) => id));
    assert.deepEqual(order.filter((id) => ["happened", "follow-ups", "payload", "result"].includes(id)),
      ["happened", "follow-ups", "payload", "result"]);
  },

  // Slots and drawings are in the viewer's zone, and an output opens at its end.
  async slots() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    await page.goto(`${url}/ns/default/job/nightly-backup`);
    const slot = page.locator("#runs tbody th time").first();
    assert.match(await slot.innerText(), /0[12]:00 (CES?T|GMT\+[12])$/);
    assert.match(await page.locator(".strip title").first().textContent(), /(CES?T|GMT\+[12])\)$/);
    await page.goto(`${url}/ns/default/job/hourly-rollup`);
    const failed = page.locator("#runs tbody tr").filter({ hasText: "failed" }).first();
    await failed.getByRole("link", { name: /^Show output of/ }).click();
    assert.match(await page.locator("#output h2").innerText(), /(CES?T|GMT\+[12])$/);
    const below = await page.locator(".output").evaluate((box) => {
      const [outer, inner] = [box, box.firstElementChild].map((one) => one.getBoundingClientRect());
      return { hidden: inner.height - outer.height, below: inner.bottom - outer.bottom };
    });
    assert.ok(below.hidden > 0 && Math.abs(below.below) < 3, `the end is not in sight: ${JSON.stringify(below)}`);
    // A bar leads to its row.
    await page.goto(`${url}/ns/default/lease/team-a/daily-publish`);
    await page.locator('.timeline a[href="#e5"]').click();
    assert.ok(await page.locator("#e5").evaluate((row) => row.matches(":target")));
  },

  async bulk() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    await page.goto(`${url}/ns/default/queue/mail`);
    await page.getByRole("link", { name: "Retry these 37…" }).click();
    await page.getByRole("heading", { name: "Retry 37 dead letters?" }).waitFor();
    await page.getByText("550 mailbox unavailable").waitFor();
    await page.getByLabel("Why").fill("mailbox is back");
    await ask("change some behind the form");
    await page.getByRole("button", { name: "Retry these 37" }).click();
    await page.getByRole("status").getByText("36 dead letters are back in line. 1 had changed meanwhile").waitFor();
    // What came after the count is still there, and can be removed.
    await page.getByRole("link", { name: "Purge these 3…" }).click();
    await page.getByLabel("Why").fill("not ours");
    await page.getByRole("button", { name: "Purge these 3" }).click();
    await page.getByRole("status").getByText("3 dead letters are removed.").waitFor();
    await page.getByRole("link", { name: "Retry these 2…" }).waitFor();
    assert.equal(await page.getByText("550 mailbox unavailable").count(), 0);

    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Key").waitFor();
    await signIn(page, reader);
    await page.waitForURL("**/ns/default/leases");
    await page.goto(`${url}/ns/default/queue/mail`);
    await page.getByText("timeout").first().waitFor();
    assert.equal(await page.locator("a.button").count(), 0);
  },

  async hostile() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    const paths = ["leases", "leases?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", "lease/a", "queues", "queue/q",
      `queue/q/dead-letters?order=retry&reason=${encodeURIComponent(process.env.REASON ?? "")}`,
      `item/q/${dead}?payload=shown`, `item/q/${done}?payload=shown`, "jobs", "job/j", "health", "lease/%3Cscript%3Ealert(1)%3C%2Fscript%3E"];
    for (const path of paths) {
      await page.goto(`${url}/ns/default/${path}`);
      if (path === "job/j") await page.getByRole("link", { name: /^Show output of/ }).click();
      await page.evaluate(() => new Promise((done) => setTimeout(done, 50)));
      assert.notEqual(await page.title(), "owned", path);
      assert.equal(await page.locator("main img, main script, main b[onmouseover], main u, main i:not(.key)").count(), 0, path);
    }
    for (const path of ["lease/a", "queue/q", `item/q/${dead}`, `item/q/${done}?payload=shown`, "job/j", "health"]) {
      await page.goto(`${url}/ns/default/${path}`);
      assert.match(await page.locator("main").innerText(), /<img src=x onerror=/, path);
    }
  },

  async tabs() {
    const first = context.pages()[0];
    const isStream = (request) => new URL(request.url()).pathname.endsWith("/changes");
    let streams = 0;
    context.on("request", (request) => { if (isStream(request)) streams += 1; });
    const begun = context.waitForEvent("request", isStream);
    await signIn(first, key);
    await first.waitForURL("**/ns/default/leases");
    await begun;
    const tabs = [first];
    for (let n = 1; n < 7; n += 1) {
      const page = await context.newPage();
      await page.goto(`${url}/ns/default/leases`);
      tabs.push(page);
    }
    for (const page of tabs) await page.locator('[id="l-watched"]').getByText("first (box-1").waitFor();
    await ask("change hands");
    for (const page of tabs) await page.locator('[id="l-watched"]').getByText("second (box-2").waitFor();
    assert.equal(streams, 1, "more than one tab has a stream");
    // The tab with the stream goes; another takes over, and tells the rest.
    const next = context.waitForEvent("request", isStream);
    await tabs[0].close();
    await next;
    await tabs[6].waitForRequest((request) => request.url().endsWith("/leases"));
    assert.equal(streams, 2);
  },

  // A tab that nobody looks at gives its stream back and asks for nothing; looked at again, it is current.
  async hidden() {
    const page = context.pages()[0];
    const isStream = (request) => new URL(request.url()).pathname.endsWith("/changes");
    const begun = context.waitForEvent("request", isStream);
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    await begun;
    await page.locator('[id="l-watched"]').getByText("first (box-1").waitFor();
    // A browser without a screen never hides a tab by itself.
    const hide = (isHidden) => page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }, isHidden);
    await hide(true);
    let asked = 0;
    page.on("request", () => { asked += 1; });
    await ask("nobody follows");
    assert.equal(asked, 0, "a hidden tab asks");
    await page.locator('[id="l-watched"]').getByText("first (box-1").waitFor();
    const again = context.waitForEvent("request", isStream);
    await hide(false);
    await again;
    await page.locator('[id="l-watched"]').getByText("second (box-2").waitFor();
  },

  // However often something changes, a page is read no more often than the server says.
  async floor() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    await page.locator("#live").getByText("Live").waitFor();
    const times = [];
    page.on("request", (request) => { if (request.url().endsWith("/leases")) times.push(Date.now()); });
    await ask("change again and again");
    while (times.length < 5) await page.waitForRequest((request) => request.url().endsWith("/leases"));
    const shortest = Math.min(...times.slice(1).map((time, n) => time - times[n]));
    assert.ok(shortest > 1_900, `read again after ${shortest} ms`);
  },

  // What changes while the page is being read is read too, and soon: not only when the next hint comes.
  async meanwhile() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    const devtools = await context.newCDPSession(page);
    await devtools.send("Network.enable");
    const isTold = new Promise((told) => {
      devtools.on("Network.eventSourceMessageReceived", ({ eventName }) => { if (eventName === "changed") told(); });
    });
    let answered = 0;
    let begun;
    const hasBegun = new Promise((done) => { begun = done; });
    await page.route("**/leases", async (route) => {
      const response = await route.fetch();
      answered += 1;
      begun();
      if (answered === 1) await isTold;
      await route.fulfill({ response });
    });
    await hasBegun;
    await ask("change hands");
    await page.locator('[id="l-watched"]').getByText("second (box-2").waitFor({ timeout: 10_000 });
    assert.equal(answered, 2);
  },

  // Without script every page is complete, and every order can be given.
  async plain() {
    const page = context.pages()[0];
    await signIn(page, key);
    await page.waitForURL("**/ns/default/leases");
    const watched = page.locator('[id="l-watched"]');
    await watched.getByText("first (box-1").waitFor();
    assert.match(await watched.locator("time").first().getAttribute("title"), / UTC$/);
    for (const id of ["live", "pause", "cut"]) assert.equal(await page.locator(`#${id}`).isVisible(), false, id);
    await page.getByRole("searchbox").fill("team-b");
    await page.getByRole("button", { name: "Filter" }).click();
    await page.waitForURL("**/leases?q=team-b");
    assert.equal(await page.locator("tbody tr").count(), 3);
    await page.goto(`${url}/ns/default/lease/watched`);
    await page.getByText("Revoke…").click();
    await page.locator("#revoke-why").fill("disk of box-1 is full");
    await page.getByRole("button", { name: "Revoke at epoch 1" }).click();
    await page.getByRole("status").getByText("Revoked.").waitFor();
    await page.locator("#e2").getByText("disk of box-1 is full").waitFor();
    await page.goto(`${url}/ns/default/item/mail/${dead}`);
    await page.getByRole("link", { name: "Show payload" }).click();
    await page.locator("pre").getByText("user0@example.org").waitFor();
    await page.getByText("Retry…").click();
    await page.locator("#retry-why").fill("mailbox is back");
    await page.getByRole("button", { name: /^Retry at epoch/ }).click();
    await page.getByRole("status").getByText("Back in line").waitFor();
    await page.goto(`${url}/ns/default/queue/mail`);
    await page.getByRole("link", { name: "Purge this one…" }).first().click();
    await page.getByLabel("Why").fill("not ours");
    await page.getByRole("button", { name: "Purge this one" }).click();
    await page.getByRole("status").getByText("1 dead letter is removed.").waitFor();
    await page.goto(`${url}/ns/default/job/hourly-rollup`);
    await page.getByRole("link", { name: /^Show output of .* UTC$/ }).first().click();
    await page.locator("#output").getByText("rolled up 18,220 rows").waitFor();
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Key").waitFor();
  },

  async axe() {
    const page = context.pages()[0];
    const at = (path) => () => page.goto(`${url}/ns/default/${path}`);
    const lease = "lease/team-a/daily-publish";
    const pages = [["sign-in", () => page.goto(`${url}/`)],
      // It opens its address again, which is not answered here, so it stays.
      ["opens-again", async () => {
        await context.clearCookies();
        let asked = 0, stay;
        const stays = new Promise((done) => { stay = done; });
        const opensOnce = async (route) => {
          asked += 1;
          if (asked === 1) return route.continue();
          await route.fulfill({ status: 204 });
          return stay();
        };
        await page.route(`**/${lease}`, opensOnce);
        await page.goto(`data:text/html,<a href="${url}/ns/default/${lease}">look</a>`);
        await page.getByText("look").click();
        await page.getByRole("heading", { name: "One moment" }).waitFor();
        await stays;
        await page.unroute(`**/${lease}`, opensOnce);
      }],
      ["leases", at("leases"), key], ["lease", at(lease)], ["queues", at("queues")], ["queue", at("queue/mail")],
      ["confirm", at("queue/mail/dead-letters?order=retry&reason=550%20mailbox%20unavailable")],
      ["item", at(`item/mail/${dead}?payload=shown`)], ["jobs", at("jobs")],
      ["runs", async () => {
        await at("job/hourly-rollup")();
        await page.getByRole("link", { name: /^Show output of/ }).first().click();
      }],
      ["health", at("health")], ["problem", at("nothing-is-here")],
      ["token", async () => {
        await at(lease)();
        await page.getByText("Hand off…").click();
        await page.locator("#hand-off-to").fill("box-9");
        await page.locator("#hand-off-why").fill("disk of box-2 is full");
        await page.getByRole("button", { name: /^Hand off at epoch/ }).click();
        await page.locator("#new-token").waitFor();
      }],
      ["namespaces", () => page.goto(`${url}/`), roaming]];
    for (const [name, open, bearer] of pages) {
      if (bearer) {
        await context.clearCookies();
        await signIn(page, bearer);
        await page.getByRole("button", { name: "Sign out" }).waitFor();
      }
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        for (const [size, width] of [["wide", 1180], ["phone", 390]]) {
          await page.setViewportSize({ width, height: size === "wide" ? 760 : 844 });
          await open();
          await page.evaluate(() => document.querySelectorAll(".order").forEach((order) => { order.open = true; }));
          await page.evaluate(axe);
          const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
          const grave = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
          for (const { id, nodes } of grave) faults.push(`${name} ${colorScheme} ${size}: ${id}: ${nodes[0].html} ${nodes[0].failureSummary}`);
          const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          if (overflow > 0) faults.push(`${name} ${size}: ${overflow} pixels too wide`);
          if (shots && !["opens-again", "problem", "token", "namespaces"].includes(name)) {
            await page.evaluate(() => document.querySelectorAll(".order").forEach((order) => { order.open = false; }));
            await page.evaluate(() => scrollTo(0, 0));
            const kind = size === "wide" ? (colorScheme === "dark" ? "-dark" : "") : `-${size}${colorScheme === "dark" ? "-dark" : ""}`;
            await page.screenshot({ path: join(shots, `page-${name}${kind}.png`) });
          }
        }
      }
    }
  },
};

let code = 0;
try {
  await acts[process.argv[2]]();
  assert.deepEqual(faults, []);
} catch (error) {
  console.log(String(error.stack ?? error));
  for (const page of context.pages()) console.log(page.url(), (await page.locator("body").innerText().catch(() => "")).slice(0, 1500));
  code = 1;
}
await context.close();
rmSync(profile, { recursive: true, force: true });
process.exit(code);
