//! What stands for requests in a build without them: nobody gets this far, because settings that need them are refused.

use leasehold_core::secret::WebUrl;
use leasehold_core::{Error, Kind, Result};
use std::time::Duration;

#[derive(Debug)]
pub struct Letter {
    pub url: WebUrl,
    pub headers: Vec<(&'static str, String)>,
    pub content_type: &'static str,
    pub body: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<Duration>,
}

impl Answer {
    pub const fn is_success(self) -> bool {
        false
    }

    pub const fn passes(self) -> bool {
        false
    }
}

pub async fn send(letter: Letter, _: Duration) -> Result<Answer> {
    let Letter { url, headers, content_type, body } = letter;
    let what = format!("{content_type} with {} headers and {} bytes", headers.len(), body.map_or(0, |body| body.len()));
    Err(Error::new(Kind::Unsupported, format!("this build cannot send {what} to `{url}`")))
}

#[derive(Debug, Clone)]
pub struct WebhookSecret;

impl std::str::FromStr for WebhookSecret {
    type Err = Error;

    fn from_str(_: &str) -> Result<Self> {
        Ok(WebhookSecret)
    }
}

pub fn webhook_headers(id: &str, _: u64, _: Option<&WebhookSecret>, _: &[u8]) -> Vec<(&'static str, String)> {
    vec![("webhook-id", id.to_owned())]
}
