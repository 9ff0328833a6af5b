//! Where a message goes: a command, or a webhook in the form of Standard Webhooks.
//!
//! Promise: it is over by the time that was given; whatever was not clearly taken is an error, and may have arrived.

use crate::outbound::{self, Letter, WebhookSecret, webhook_headers};
use leasehold_core::secret::WebUrl;
use leasehold_core::{Error, Kind, Result};
use leasehold_work::notify::Notice;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// Where a message goes.
#[derive(Debug, Clone)]
pub enum Target {
    /// A program, with the event on its standard input and in its environment.
    Command { words: Vec<String>, folder: PathBuf },
    /// A service.
    Webhook(Webhook),
}

/// A service that takes webhooks.
#[derive(Debug, Clone)]
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

impl Target {
    /// What a channel without a name of its own is known by.
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
        let body = notice.body.to_string().into_bytes();
        let sent_at = leasehold_system::clock::wall_ms() / 1000;
        let headers = webhook_headers(&notice.id, sent_at, self.secret.as_ref(), &body);
        let (url, content_type) = (self.url.clone(), "application/json");
        let answer = outbound::send(Letter { url, headers, content_type, body: Some(body) }, limit).await?;
        if answer.is_success() {
            return Ok(());
        }
        let error = Error::new(Kind::Unavailable, format!("`{}` answered {}", self.url, answer.status));
        // 410 is how a service says that it wants no more of them.
        let retry_in = answer.retry_after.map(|asked| asked.clamp(Duration::from_secs(1), MOST));
        Err(NotTaken { error, is_final: answer.status == 410, retry_in })
    }
}

async fn run(words: &[String], folder: &std::path::Path, notice: &Notice, limit: Duration) -> Result<()> {
    let event = notice.body.to_string();
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let cannot = |e: std::io::Error| Error::unavailable(format!("cannot run `{program}`"), e);
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    if folder.is_dir() {
        command.current_dir(folder);
    }
    // It is not the run that it is told of.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEASEHOLD_")) {
        command.env_remove(name);
    }
    command.env("LEASEHOLD_EVENT", &event).env("LEASEHOLD_EVENT_ID", &notice.id);
    command.env("LEASEHOLD_EVENT_TYPE", notice.kind()).env("LEASEHOLD_EVENT_NAME", notice.name());
    command.env("LEASEHOLD_EVENT_TEXT", notice.text());
    let mut child = command.spawn().map_err(cannot)?;
    let mut input = child.stdin.take();
    let running = async {
        if let Some(input) = &mut input {
            // Whoever does not read it has it in the environment.
            let _ = input.write_all(event.as_bytes()).await;
        }
        drop(input.take());
        child.wait().await.map_err(cannot)
    };
    match tokio::time::timeout(limit, running).await {
        Ok(status) => match status? {
            status if status.success() => Ok(()),
            status => Err(Error::new(Kind::Unavailable, format!("`{program}` ended with {status}"))),
        },
        Err(_) => {
            let limit = leasehold_core::format_duration(limit);
            Err(Error::new(Kind::Unavailable, format!("`{program}` had not ended after {limit}")))
        }
    }
}
