//! One signed request to DynamoDB.

use super::error::{CallError, code_in, refused};
use crate::credentials::aws::Wanted;
use crate::credentials::{Renewed, are_refused, var};
use crate::http::client::reading;
use crate::http::{Answer, exchange};
use crate::phase::Phase;
use leasehold_core::{Error, Kind, Result, Timestamp};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpClient, HttpRequest};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Url};
use serde_json::Value;
use std::fmt;

const API: &str = "DynamoDB_20120810";
const CONTENT: &str = "application/x-amz-json-1.0";

/// Where requests are sent, and the credentials that sign them.
pub(super) struct Endpoint {
    client: Client,
    credentials: Renewed<AwsCredential>,
    url: Url,
    region: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str().trim_end_matches('/'))
    }
}

pub(super) fn is_region(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// The URL of an endpoint; none if it is not one.
pub(super) fn endpoint_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.username().is_empty() && url.password().is_none();
    (matches!(url.scheme(), "http" | "https") && url.has_host() && is_bare).then_some(url)
}

impl Endpoint {
    /// The given endpoint, or that of the environment, or AWS's own for the region.
    pub(super) fn new(client: Client, wanted: Wanted, named: Option<&str>) -> Result<Self> {
        let var = |name: &str| var(&wanted.env, name);
        let region = wanted.region()?.ok_or_else(|| {
            let message = "no AWS region; write dynamodb://region/table, or set AWS_REGION";
            Error::new(Kind::Unsupported, message)
        })?;
        let given = named.or_else(|| var("AWS_ENDPOINT_URL_DYNAMODB")).or_else(|| var("AWS_ENDPOINT_URL"));
        let text = given.map(str::to_owned).unwrap_or_else(|| {
            let suffix = if region.starts_with("cn-") { ".cn" } else { "" };
            format!("https://dynamodb.{region}.amazonaws.com{suffix}")
        });
        let url = endpoint_url(&text).filter(|_| is_region(&region)).ok_or_else(|| {
            let message = "AWS_REGION or AWS_ENDPOINT_URL is malformed; use eu-central-1 and http://host:port";
            Error::new(Kind::Unsupported, message)
        })?;
        let wanted = Wanted { region: Some(region.clone()), ..wanted };
        let credentials = wanted.credentials(HttpClient::new(client.clone()));
        Ok(Endpoint { client, credentials, url, region })
    }

    pub(super) fn region(&self) -> &str {
        &self.region
    }

    /// One action. A write is sent once, and again only if its credentials were refused and have changed.
    pub(super) async fn call(
        &self,
        action: &str,
        question: &Value,
        phase: Phase,
        table: &str,
    ) -> Result<(Value, Timestamp), CallError> {
        let issue = self.credentials.issue();
        let mut answer = self.exchange(action, question, phase).await?;
        if are_refused(answer.status, &code_in(&answer)) && self.credentials.replaced(issue).await {
            answer = self.exchange(action, question, phase).await?;
        }
        match answer.status {
            200 => {
                let value = serde_json::from_slice(&answer.body).map_err(|e| {
                    let message = format!("{self} gave an answer that is not DynamoDB's; check the endpoint");
                    Error::new(phase.unanswered(), message).with_source(e)
                })?;
                Ok((value, answer.now))
            }
            _ => Err(refused(self, &answer, action, phase, table)),
        }
    }

    async fn exchange(&self, action: &str, question: &Value, phase: Phase) -> Result<Answer> {
        let request = self.request(action, question).await?;
        let endpoint = self.to_string();
        match phase {
            Phase::Reading => reading(request, &endpoint).await,
            _ => exchange(request, phase, &endpoint).await,
        }
    }

    async fn request(&self, action: &str, question: &Value) -> Result<RequestBuilder> {
        let cannot = |what: String| Error::new(Kind::Invalid, format!("cannot sign a request to {self}: {what}"));
        let body = question.to_string();
        let mut signed = HttpRequest::new(body.clone().into());
        *signed.method_mut() = Method::POST;
        *signed.uri_mut() = self.url.as_str().parse().map_err(|_| cannot("its address is malformed".into()))?;
        let target = HeaderValue::from_str(&format!("{API}.{action}")).map_err(|e| cannot(e.to_string()))?;
        signed.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
        signed.headers_mut().insert("x-amz-target", target);
        let credential = self.credentials.get().await?;
        // The signature has this machine's time: the server refuses it if it is wrong by more than a few minutes.
        AwsAuthorizer::new(&credential, "dynamodb", &self.region)
            .try_authorize(&mut signed, None)
            .map_err(|e| cannot(e.to_string()))?;
        Ok(self.client.post(self.url.clone()).headers(signed.headers().clone()).body(body))
    }
}
