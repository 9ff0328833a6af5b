//! Where a message goes: a command, or a webhook in the form of Standard Webhooks.
//!
//! Promise: it is over by the time that was given; whatever was not clearly taken is an error, and may have arrived.

use crate::outbound::{self, Letter, WebhookSecret, webhook_headers};
use crate::supervise::{Ended, Errand};
use leasehold_core::secret::WebUrl;
use leasehold_core::{Error, Kind, Result};
use leasehold_work::notify::Notice;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A program, with the event on its standard input and in its environment.
    Command { words: Vec<String>, folder: PathBuf },
    /// A service.
    Webhook(Webhook),
}

/// A service that takes webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    pub url: WebUrl,
    /// Unsigned if none.
    pub secret: Option<WebhookSecret>,
}

/// Why a message was not taken.
#[derive(Debug)]
pub struct NotTaken {
    pub error: Error,
    /// It is not tried again.
    pub is_final: bool,
    pub retry_in: Option<Duration>,
}

impl From<Error> for NotTaken {
    fn from(error: Error) -> Self {
        NotTaken { error, is_final: false, retry_in: None }
    }
}

impl std::fmt::Display for Target {
    /// As people may see it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Its arguments may hold what is secret.
            Target::Command { words, .. } => {
                let rest = if words.len() > 1 { " …" } else { "" };
                write!(f, "command {}{rest}", words.first().map_or("", String::as_str))
            }
            Target::Webhook(webhook) => write!(f, "webhook {}", webhook.url),
        }
    }
}

impl Target {
    /// Refuses a program that cannot be found on this machine.
    pub fn check(&self) -> Result<()> {
        let Target::Command { words, folder } = self else { return Ok(()) };
        let Some(program) = words.first() else { return Ok(()) };
        let search = std::env::var_os("PATH").unwrap_or_default();
        let (found, location) = match program.contains('/') {
            true => (is_program(&folder.join(program)), format!("from folder `{}`", folder.display())),
            false => (std::env::split_paths(&search).any(|folder| is_program(&folder.join(program))), "in PATH".into()),
        };
        let message = || format!("field `command`: there is no program `{program}` {location}");
        if found { Ok(()) } else { Err(Error::new(Kind::Unsupported, message())) }
    }

    /// What it is in a word that people may see: `webhook-hooks.example.com`, `command-page.sh`.
    pub fn word(&self) -> String {
        match self {
            Target::Command { words, .. } => {
                let program = words.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
                format!("command-{}", program.display())
            }
            Target::Webhook(webhook) => format!("webhook-{}", webhook.url.host()),
        }
    }

    /// Identifies a channel without a name of its own. It may be secret.
    pub fn identity(&self) -> String {
        match self {
            Target::Command { words, .. } => words.join("\0"),
            Target::Webhook(webhook) => webhook.url.expose().to_owned(),
        }
    }

    /// Delivers it.
    pub async fn deliver(&self, notice: &Notice, limit: Duration) -> Result<(), NotTaken> {
        match self {
            Target::Command { words, folder } => Ok(run(words, folder, notice, limit).await?),
            Target::Webhook(webhook) => webhook.post(notice, limit).await,
        }
    }
}

impl Webhook {
    async fn post(&self, notice: &Notice, limit: Duration) -> Result<(), NotTaken> {
        /// The longest that a service is obeyed when it asks for time.
        const MOST: Duration = Duration::from_secs(3_600);
        let mut body = notice.body.clone();
        if let Some(text) = body["text"].as_str().map(plain) {
            body["text"] = text.into();
        }
        let body = body.to_string().into_bytes();
        let sent_at = leasehold_system::clock::wall_ms() / 1000;
        let headers = webhook_headers(&notice.id, sent_at, self.secret.as_ref(), &body);
        let (url, content_type) = (self.url.clone(), "application/json");
        let answer = outbound::send(Letter { url, headers, content_type, body: Some(body) }, limit).await?;
        if answer.is_success() {
            return Ok(());
        }
        let error = Error::new(Kind::Unavailable, format!("`{}` answered {}", self.url, answer.status));
        // By 410 a service says that it wants no more messages.
        let retry_in = answer.retry_after.map(|asked| asked.clamp(Duration::from_secs(1), MOST));
        Err(NotTaken { error, is_final: answer.status == 410, retry_in })
    }
}

/// Text in which a chat finds no mention and no link: what a job prints must not call everybody in a channel.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

async fn run(words: &[String], folder: &std::path::Path, notice: &Notice, limit: Duration) -> Result<()> {
    let event = notice.body.to_string();
    let Some(program) = words.first() else { return Ok(()) };
    // The command is not part of the run that the message is about.
    let environment = vec![
        ("LEASEHOLD_EVENT", event.clone()),
        ("LEASEHOLD_EVENT_ID", notice.id.clone()),
        ("LEASEHOLD_EVENT_TYPE", notice.kind().to_owned()),
        ("LEASEHOLD_EVENT_NAME", notice.name().to_owned()),
        ("LEASEHOLD_EVENT_TEXT", notice.text().to_owned()),
    ];
    let words = words.iter().map(OsString::from).collect();
    let folder = folder.is_dir().then(|| folder.to_path_buf());
    let errand = Errand { words, folder, environment, input: event.into_bytes() };
    let failed = |how: String| Err(Error::new(Kind::Unavailable, format!("`{program}` {how}")));
    match errand.run(limit).await {
        Ok(Some(Ended::Exited(0))) => Ok(()),
        Ok(Some(Ended::NotStarted(trouble))) => failed(format!("cannot be run: {trouble}")),
        Ok(Some(ended)) => failed(format!("ended with {ended}")),
        Ok(None) => failed(format!("had not ended after {}, and was ended", leasehold_core::format_duration(limit))),
        Err(error) => failed(format!("cannot be run: {error}")),
    }
}
