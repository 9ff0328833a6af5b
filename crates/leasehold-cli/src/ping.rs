//! Pings: they tell a monitoring service that a run starts and how it ended.
//!
//! Two services' forms are supported, recognised by the URL. *Healthchecks*, and whatever takes the same: `URL/start`, `URL`
//! after success, `URL/CODE` after failure, with `rid` for the run and the last lines as the body. *Sentry Crons*, where the
//! path is `/api/PROJECT/cron/SLUG/KEY/`: `status` and `check_in_id` in the query.
//!
//! Promise: a service that fails, refuses or hangs changes nothing about the run, and costs it [`PATIENCE`] after its end at
//! most; the end arrives after the start, if both do. The URL is shown to nobody. Non-promise: a ping that did not arrive in
//! that time is not sent later. If every failure must be reported, use `[[notify]]`.

use crate::outbound::{self, Letter};
use leasehold_core::secret::WebUrl;
use leasehold_core::{Nonce, Result};
use std::time::Duration;

/// The variable by which `schedule` gives `run` the URL, because everybody can see arguments.
pub const VARIABLE: &str = "LEASEHOLD_PING";
/// How long the pings of a run may take after its end.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How much of the output Healthchecks takes.
const MAX_BODY: usize = 100_000;

/// A service's URL, and the form it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PingUrl {
    url: WebUrl,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Healthchecks,
    Sentry,
}

/// What a ping reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    Started,
    /// With this exit code, and these last lines of output.
    Ended(u8, Option<String>),
    /// Asked to finish before its work was done: neither a success nor a failure.
    Drained(Option<String>),
}

impl PingUrl {
    pub fn parse(text: &str) -> Result<Self> {
        let url: WebUrl = text.parse()?;
        let segments: Vec<&str> = url.path_and_query().0.trim_matches('/').split('/').collect();
        let form = match segments[..] {
            ["api", _, "cron", _, _] => Form::Sentry,
            _ => Form::Healthchecks,
        };
        outbound::check("ping")?;
        Ok(PingUrl { url, form })
    }

    /// Whether the service takes the last lines of the output.
    pub fn takes_output(&self) -> bool {
        self.form == Form::Healthchecks
    }

    /// The request for this signal of this run: where to, and what to post there; none is a plain GET.
    fn request(&self, run: &str, signal: &Signal) -> (WebUrl, Option<Vec<u8>>) {
        let (path, query) = self.url.path_and_query();
        let with =
            |field: String| query.filter(|q| !q.is_empty()).map_or(field.clone(), |query| format!("{query}&{field}"));
        match self.form {
            Form::Healthchecks => {
                let path = path.trim_end_matches('/');
                let (path, body) = match signal {
                    Signal::Started => (format!("{path}/start"), None),
                    Signal::Ended(0, tail) => (path.to_owned(), tail.as_deref()),
                    Signal::Ended(code, tail) => (format!("{path}/{code}"), tail.as_deref()),
                    // Shown, and neither good nor bad.
                    Signal::Drained(tail) => (format!("{path}/log"), tail.as_deref()),
                };
                (self.url.at(&path, Some(&with(format!("rid={run}")))), Some(end_of(body.unwrap_or_default())))
            }
            Form::Sentry => {
                let status = match signal {
                    Signal::Started => "in_progress",
                    // It knows no third way to end, and what was begun and never ends is an error there.
                    Signal::Ended(0, _) | Signal::Drained(_) => "ok",
                    Signal::Ended(..) => "error",
                };
                (self.url.at(path, Some(&with(format!("check_in_id={run}&status={status}")))), None)
            }
        }
    }
}

/// The last bytes of a text, from the beginning of a character on.
fn end_of(text: &str) -> Vec<u8> {
    let mut from = text.len().saturating_sub(MAX_BODY);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text.as_bytes()[from..].to_vec()
}

/// The pings of one run.
#[derive(Debug)]
pub struct Pings {
    to: PingUrl,
    run: String,
    /// Whether the start was reported.
    start: tokio::task::JoinHandle<bool>,
}

impl Pings {
    /// Says that a run starts, in the background.
    pub fn start(to: &PingUrl) -> Self {
        let run = run_id(Nonce::random());
        let start = tokio::spawn({
            let (to, run) = (to.clone(), run.clone());
            async move { send(&to, &run, &Signal::Started).await.map_err(|why| not_told(&to, &why)).is_ok() }
        });
        Pings { to: to.clone(), run, start }
    }

    /// Says how it ended. Over after [`PATIENCE`].
    pub async fn end(mut self, signal: Signal) {
        let mut is_said = false;
        let telling = async {
            // Otherwise the service would take the run for one that is still going on.
            is_said = !(&mut self.start).await.unwrap_or(true);
            send(&self.to, &self.run, &signal).await
        };
        let told = tokio::time::timeout(PATIENCE, telling).await;
        self.start.abort();
        let told = told.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())));
        if let Err(why) = told.as_ref().map_err(String::as_str)
            && !is_said
        {
            not_told(&self.to, why);
        }
    }
}

/// A random UUID, in its usual form.
fn run_id(nonce: Nonce) -> String {
    let bits = nonce.as_u128() & !(0xf000 << 64) & !(0b11 << 62) | (0x4000 << 64) | (0b10 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Once for a run: a service that is away misses the start and the end of it.
fn not_told(to: &PingUrl, why: &str) {
    let url = &to.url;
    tracing::warn!(error = why, "the ping to `{url}` was not accepted; the run is not affected: {why}");
}

/// Sends it, and once more if the service did not accept it the first time; gives why it was not accepted.
async fn send(to: &PingUrl, run: &str, signal: &Signal) -> Result<(), String> {
    const EACH: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_millis(300);
    let mut why = String::new();
    for attempt in 0..2 {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let (url, body) = to.request(run, signal);
        let letter = Letter { url, headers: Vec::new(), content_type: "text/plain; charset=utf-8", body };
        why = match outbound::send(letter, EACH).await {
            Ok(answer) if answer.is_success() => return Ok(()),
            Ok(answer) if !answer.is_temporary() => return Err(format!("it answered {}", answer.status)),
            Ok(answer) => format!("it answered {}", answer.status),
            Err(error) => error.to_string(),
        };
    }
    Err(why)
}

#[cfg(all(test, feature = "http"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const RUN: &str = "11111111-2222-4333-8444-555555555555";

    fn request(url: &str, signal: &Signal) -> (String, Option<String>) {
        let (url, body) = PingUrl::parse(url).unwrap().request(RUN, signal);
        (url.expose().to_owned(), body.map(|body| String::from_utf8(body).unwrap()))
    }

    #[test]
    fn healthchecks_gets_the_signal_in_its_path_and_the_output_as_its_body() {
        let url = "https://hc-ping.com/0c8983c9-9d73-446f-adb5-0641fdacc9d4";
        let ended = |code| Signal::Ended(code, Some("last line\n".into()));
        assert_eq!(request(url, &Signal::Started), (format!("{url}/start?rid={RUN}"), Some(String::new())));
        assert_eq!(request(url, &ended(0)), (format!("{url}?rid={RUN}"), Some("last line\n".into())));
        assert_eq!(request(url, &ended(3)), (format!("{url}/3?rid={RUN}"), Some("last line\n".into())));
        let drained = Signal::Drained(Some("last line\n".into()));
        assert_eq!(request(url, &drained), (format!("{url}/log?rid={RUN}"), Some("last line\n".into())));
        let slug = "https://hc-ping.com/key/nightly?create=1";
        assert_eq!(request(slug, &ended(137)).0, format!("https://hc-ping.com/key/nightly/137?create=1&rid={RUN}"));
        assert_eq!(request("https://hc.example/ping/x/", &ended(0)).0, format!("https://hc.example/ping/x?rid={RUN}"));
        let long = format!("ä{}", "x".repeat(MAX_BODY - 1));
        assert_eq!(request(url, &Signal::Ended(1, Some(long))).1.unwrap().len(), MAX_BODY - 1);
    }

    #[test]
    fn sentry_gets_it_in_the_query() {
        let url = "https://o1.ingest.sentry.io/api/42/cron/nightly/0123abcd/";
        let asked = |query: &str| (format!("{url}?check_in_id={RUN}&status={query}"), None);
        assert_eq!(request(url, &Signal::Started), asked("in_progress"));
        assert_eq!(request(url, &Signal::Ended(0, Some("x".into()))), asked("ok"));
        assert_eq!(request(url, &Signal::Ended(9, None)), asked("error"));
        assert_eq!(request(url, &Signal::Drained(None)), asked("ok"));
        let there = format!("{url}?environment=production");
        assert_eq!(request(&there, &Signal::Started).0, format!("{there}&check_in_id={RUN}&status=in_progress"));
    }

    #[test]
    fn a_run_id_is_a_random_uuid() {
        assert_eq!(run_id(Nonce::from_u128(u128::MAX)), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(run_id(Nonce::from_u128(0)), "00000000-0000-4000-8000-000000000000");
    }
}
