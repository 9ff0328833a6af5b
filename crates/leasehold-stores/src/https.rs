//! The client of stores that are web services: whom it trusts, and a read that is asked twice.
//!
//! Promise: it follows no redirect, so a write goes where it was sent and nowhere else; only reads are repeated.
//! Non-promise: authentication is each store's own.

use crate::address::Address;
use crate::http::{Answer, Doing, builder, exchange, undated};
use leasehold::{Error, Kind, Result};
use leasehold_system::clock;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder};
use std::time::Duration;

/// The option that names a file with further certificate authorities.
pub(crate) const CA: &str = "ca";
/// A failure that comes sooner than this was that of a kept connection that the server had closed.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A client that trusts the system's certificate authorities, and those in the file that the option `ca` names.
pub(crate) fn client(address: &Address) -> Result<Client> {
    let mut builder = builder().redirect(Policy::none());
    if let Some(path) = address.option(CA) {
        let refuse = |what: &str| {
            let message = format!("cannot use the certificate authorities in `{path}`: {what}; give a PEM file");
            Error::new(Kind::Unsupported, message)
        };
        let pem = std::fs::read(path).map_err(|e| refuse("it cannot be read").with_source(e))?;
        let certificates =
            Certificate::from_pem_bundle(&pem).map_err(|e| refuse("it is not well-formed").with_source(e))?;
        if certificates.is_empty() {
            return Err(refuse("it has none"));
        }
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(|e| {
        Error::new(Kind::Unsupported, "cannot set up TLS; check the system's certificate authorities").with_source(e)
    })
}

/// An answer of a service that tells its time in the body, or not at all.
#[allow(dead_code, reason = "not every store has such a service")]
pub(crate) struct Untimed {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Sends a request to a service that tells its time in the body, or not at all.
#[allow(dead_code, reason = "not every store has such a service")]
pub(crate) async fn untimed(request: RequestBuilder, doing: Doing, place: &str) -> Result<Untimed> {
    let (status, _, body) = match doing {
        Doing::Reading => twice(request, |request| undated(request, doing, place)).await?,
        Doing::Writing => undated(request, doing, place).await?,
    };
    Ok(Untimed { status, body })
}

/// Sends a request that changes nothing to a service that tells its time in the `Date` header.
#[allow(dead_code, reason = "some services tell their time in the body")]
pub(crate) async fn reading(request: RequestBuilder, place: &str) -> Result<Answer> {
    twice(request, |request| exchange(request, Doing::Reading, place)).await
}

/// Sends a request that changes nothing, and once more where a kept connection turned out to be closed.
async fn twice<T, Sent>(request: RequestBuilder, send: impl Fn(RequestBuilder) -> Sent) -> Result<T>
where
    Sent: Future<Output = Result<T>>,
{
    let again = request.try_clone();
    let asked = clock::now();
    match (send(request).await, again) {
        (Err(_), Some(again)) if clock::now().saturating_since(asked) < AT_ONCE => send(again).await,
        (answer, _) => answer,
    }
}

/// The milliseconds since 1970 of a time like `2026-11-15T23:27:25.123456Z`, rounded down.
#[allow(dead_code, reason = "not every store is told such times")]
pub(crate) fn millis_of(time: &str) -> Option<u64> {
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // Days since 1970 by the civil calendar, in which the year begins in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let seconds = (days.checked_sub(719_468)? * 24 + hour) * 3600 + minute * 60 + second;
    let millis = format!("{fraction:0<3}")[..3].parse::<u64>().ok()?;
    Some(seconds * 1000 + millis)
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let numbers = text.split(separator).map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
    <[u64; 3]>::try_from(numbers).ok().filter(|numbers| numbers[0] < 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_millisecond_below() {
        for (time, millis) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:34:56.7Z", Some(951_827_696_700)),
            ("2026-11-15T23:27:25.123999999Z", Some(1_794_785_245_123)),
            ("2026-03-01T00:00:00.000001Z", Some(1_772_323_200_000)),
            ("2026-11-15T23:27:25", None),
            ("2026-13-15T23:27:25Z", None),
            ("2026-11-15T23:27Z", None),
            ("2026-11-15T23:27:25.é1Z", None),
            ("0000-01-01T00:00:00Z", None),
            ("x", None),
        ] {
            assert_eq!(millis_of(time), millis, "{time}");
        }
    }
}
