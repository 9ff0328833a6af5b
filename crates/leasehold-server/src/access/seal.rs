//! What servers hide from clients, with a secret that all servers share: where listings continue, what was counted for an
//! order, and the keys in cookies.
//!
//! A cursor contains the name after which a listing continues, which its bearer may not be allowed to know. It is valid in that
//! listing only. A confirmation contains what a server has counted, so that an order acts on that and on nothing that its bearer
//! made up. It is valid for that order only.
//!
//! The cookie of a session is the key itself, encrypted (AES-256-GCM) with a secret that is stored with the keys in the servers'
//! own namespace, made by the first server that needs it. So:
//! - any server of the same store knows the session, even after a restart, and none has to remember it;
//! - a stolen cookie is a session that ends after [`LASTS`], not a key that other programs accept;
//! - somebody who reads the store, or a copy of it, cannot make a session: that takes the key, and the store has only its hash;
//! - a key that is revoked or expires ends its sessions at the next request, because each request checks the key.
//!
//! Rejected: sessions in memory (another server would not know them), records of sessions (a write for each sign-in, and a
//! record that allows what a key does), a signature over the key's id with something from the store (anyone who reads a backup
//! could sign). Non-promise: signing out makes the browser forget the cookie; a copy of it is valid until it ends.

use super::Keys;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use leasehold_core::cell::{Fate, MAX_ATTEMPTS};
use leasehold_core::document::{Document, Edit};
use leasehold_core::{Error, Key, Kind, LeaseName, Nonce, Result, Shelf, Timestamp};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce as Once, UnboundKey};
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::OnceCell;

/// How long a session lasts.
pub const LASTS: Duration = Duration::from_secs(12 * 3600);
/// The purpose of a sealed key, so that nothing else that is sealed passes for one.
const PURPOSE: &[u8] = b"leasehold page session 1";
/// The purposes of cursors and of confirmations.
const CURSOR: &[u8] = b"leasehold cursor 1";
const CONFIRMATION: &[u8] = b"leasehold confirmation 1";
const RECORD: &str = "page/seal";
const KIND: &str = "page-seal";
const SECRET: usize = 32;
const ONCE: usize = 12;
const WHEN: usize = 8;

/// The secret as it is stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Stored {
    secret: Option<String>,
}

/// The seal, once it has been read.
#[derive(Debug, Default)]
pub struct Sealing(OnceCell<Seal>);

/// What is derived from the secret.
pub struct Seal {
    sealing: LessSafeKey,
    tokens: hmac::Key,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(***)")
    }
}

impl Sealing {
    /// The seal, which is read from the store once.
    pub async fn seal(&self, keys: &Keys) -> Result<&Seal> {
        self.0.get_or_try_init(|| Seal::read(keys)).await
    }
}

impl Seal {
    async fn read(keys: &Keys) -> Result<Self> {
        let key = Key::new(Shelf::Access, &LeaseName::new(RECORD)?);
        let document = Document::<Stored>::new(keys.store().as_ref(), key, KIND, "the page's seal".to_owned());
        let clock = leasehold_core::clock::SystemClock;
        let fresh = BASE64_URL_SAFE_NO_PAD.encode(random());
        let decide =
            |stored: &Stored, _: Timestamp| Ok(stored.secret.is_none().then(|| Stored { secret: Some(fresh.clone()) }));
        // A second attempt finds one there, whoever made it.
        let edit = Edit { decide: &decide, fate: &|_| Fate::NotApplied, attempts: MAX_ATTEMPTS };
        let found = document.change(&clock, &edit).await?.record.secret;
        let secret = BASE64_URL_SAFE_NO_PAD.decode(found.as_ref().unwrap_or(&fresh)).ok();
        secret.as_deref().and_then(Seal::of).ok_or_else(|| Error::new(Kind::Corrupt, format!("`{RECORD}` is damaged")))
    }

    fn of(secret: &[u8]) -> Option<Self> {
        let secret: &[u8; SECRET] = secret.try_into().ok()?;
        let sealing = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, secret).ok()?);
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tokens = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, b"tokens of forms").as_ref());
        Some(Seal { sealing, tokens })
    }

    fn sealed(&self, purpose: &[u8], mut bytes: Vec<u8>) -> Result<String> {
        let mut once = [0; ONCE];
        once.copy_from_slice(&random()[..ONCE]);
        let failed = |_| Error::new(Kind::Invalid, "it could not be sealed");
        let nonce = Once::assume_unique_for_key(once);
        self.sealing.seal_in_place_append_tag(nonce, Aad::from(purpose), &mut bytes).map_err(failed)?;
        Ok(BASE64_URL_SAFE_NO_PAD.encode([&once[..], &bytes].concat()))
    }

    fn opened(&self, purpose: &[u8], text: &str) -> Option<Vec<u8>> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (once, sealed) = bytes.split_at_checked(ONCE)?;
        let mut sealed = sealed.to_vec();
        let once = Once::try_assume_unique_for_key(once).ok()?;
        Some(self.sealing.open_in_place(once, Aad::from(purpose), &mut sealed).ok()?.to_vec())
    }

    /// A cursor just after this name of this listing, sealed because the client may not be allowed to know the name. `listing`
    /// identifies the listing: what is listed, and where.
    pub fn cursor(&self, listing: &[&str], after: &LeaseName) -> Result<String> {
        self.sealed(&purpose(CURSOR, listing), after.as_str().into())
    }

    /// The name in a cursor of this listing.
    pub fn after(&self, listing: &[&str], cursor: &str) -> Option<LeaseName> {
        LeaseName::new(String::from_utf8(self.opened(&purpose(CURSOR, listing), cursor)?).ok()?).ok()
    }

    /// A confirmation: what was counted for this order, sealed. `order` identifies the order: what is to be done, and where.
    pub fn confirmation(&self, order: &[&str], counted: Vec<u8>) -> Result<String> {
        self.sealed(&purpose(CONFIRMATION, order), counted)
    }

    /// What was counted for this order, if a server sealed it.
    pub fn counted(&self, order: &[&str], confirmation: &str) -> Option<Vec<u8>> {
        self.opened(&purpose(CONFIRMATION, order), confirmation)
    }

    /// The cookie for a key. `now` is the time of the keys' store, here and in [`Self::open`]: servers' own clocks differ.
    pub fn close(&self, key: &str, now: Timestamp) -> Result<String> {
        self.sealed(PURPOSE, [&now.as_millis().to_be_bytes(), key.as_bytes()].concat())
    }

    /// The key in a cookie, unless it is too old or was not made here.
    pub fn open(&self, cookie: &str, now: Timestamp) -> Option<String> {
        let opened = self.opened(PURPOSE, cookie)?;
        let (when, key) = opened.split_at_checked(WHEN)?;
        let made = u64::from_be_bytes(when.try_into().ok()?);
        let lasts = u64::try_from(LASTS.as_millis()).unwrap_or(u64::MAX);
        let now = now.as_millis();
        // Servers extrapolate the store's time, so it may seem to be made a little in the future.
        let is_current = now < made.saturating_add(lasts) && made < now.saturating_add(lasts);
        is_current.then(|| String::from_utf8(key.to_vec()).ok()).flatten()
    }

    /// The token for the forms of a session, or of a visitor with this cookie who has no session yet.
    pub fn token(&self, cookie: &str) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&self.tokens, cookie.as_bytes()))
    }

    /// Whether a form has the token of this cookie.
    pub fn is_token(&self, cookie: &str, token: &str) -> bool {
        let Ok(token) = BASE64_URL_SAFE_NO_PAD.decode(token) else { return false };
        hmac::verify(&self.tokens, cookie.as_bytes(), &token).is_ok()
    }
}

/// The purpose of a sealed text. No two listings or orders have the same one, because each word comes with its length.
fn purpose(kind: &[u8], words: &[&str]) -> Vec<u8> {
    let mut purpose = kind.to_vec();
    for word in words {
        purpose.extend((word.len() as u64).to_be_bytes());
        purpose.extend(word.as_bytes());
    }
    purpose
}

/// A random text for a cookie.
pub fn random_text() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(random())
}

fn random() -> [u8; SECRET] {
    let mut bytes = [0; SECRET];
    bytes[..16].copy_from_slice(&Nonce::random().as_u128().to_be_bytes());
    bytes[16..].copy_from_slice(&Nonce::random().as_u128().to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    #[test]
    fn a_session_opens_with_its_own_seal_until_it_ends() {
        let seal = Seal::of(&random()).unwrap();
        let cookie = seal.close("lh_r_abc", NOW).unwrap();
        assert!(!cookie.contains("lh_r"));
        assert_eq!(seal.open(&cookie, NOW.plus(Duration::from_millis(1))).as_deref(), Some("lh_r_abc"));
        let end = NOW.plus(LASTS);
        assert!(seal.open(&cookie, Timestamp::from_millis(end.as_millis() - 1)).is_some());
        assert_eq!(seal.open(&cookie, end), None);
        assert_eq!(Seal::of(&random()).unwrap().open(&cookie, NOW), None);
        assert_ne!(seal.close("lh_r_abc", NOW).unwrap(), cookie);
    }

    #[test]
    fn a_changed_cookie_opens_nothing() {
        let seal = Seal::of(&random()).unwrap();
        let cookie = seal.close("lh_r_abc", NOW).unwrap();
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(&cookie).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open(&BASE64_URL_SAFE_NO_PAD.encode(changed), NOW), None, "byte {at}");
        }
        for wrong in ["", "x", "lh_r_abc", &cookie[1..], &cookie[..10]] {
            assert_eq!(seal.open(wrong, NOW), None);
        }
    }

    #[test]
    fn a_cursor_says_nothing_and_is_not_a_cookie() {
        let seal = Seal::of(&random()).unwrap();
        let name = LeaseName::new("team-a/reports").unwrap();
        let listing = ["leases", "team"];
        let cursor = seal.cursor(&listing, &name).unwrap();
        assert_eq!(seal.after(&listing, &cursor), Some(name));
        assert!(!String::from_utf8_lossy(&BASE64_URL_SAFE_NO_PAD.decode(&cursor).unwrap()).contains("team"));
        assert_eq!(seal.open(&cursor, NOW), None);
        assert_eq!(seal.after(&[], &seal.close("lh_r_abc", NOW).unwrap()), None);
        for other in [&["leases", "other"][..], &["jobs", "team"], &["leasest", "eam"], &["leases"], &[]] {
            assert_eq!(seal.after(other, &cursor), None, "{other:?}");
        }
        for wrong in ["", "!", "dGVhbS1hL3JlcG9ydHM", &cursor[1..]] {
            assert_eq!(seal.after(&listing, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_confirmation_counts_for_the_order_that_it_was_counted_for() {
        let seal = Seal::of(&random()).unwrap();
        let order = ["team", "mail", "purge"];
        let confirmation = seal.confirmation(&order, b"counted".to_vec()).unwrap();
        assert_eq!(seal.counted(&order, &confirmation).as_deref(), Some(&b"counted"[..]));
        assert_eq!(Seal::of(&random()).unwrap().counted(&order, &confirmation), None);
        for other in [["other", "mail", "purge"], ["team", "other", "purge"], ["team", "mail", "retry"]] {
            assert_eq!(seal.counted(&other, &confirmation), None, "{other:?}");
        }
        assert_eq!(seal.counted(&order, &BASE64_URL_SAFE_NO_PAD.encode("counted")), None);
        assert_eq!(seal.after(&order, &confirmation), None);
        assert_eq!(seal.counted(&order, &seal.cursor(&order, &LeaseName::new("x").unwrap()).unwrap()), None);
    }

    #[test]
    fn a_token_is_of_one_cookie() {
        let seal = Seal::of(&random()).unwrap();
        let token = seal.token("one");
        assert!(seal.is_token("one", &token));
        for (cookie, wrong) in [("two", token.as_str()), ("one", ""), ("one", "AAAA"), ("one", &token[1..])] {
            assert!(!seal.is_token(cookie, wrong));
        }
    }
}
