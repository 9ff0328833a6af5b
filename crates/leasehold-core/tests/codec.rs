//! Records as bytes: golden files of the format, damage that must be noticed, and parsers fed rubbish.
//!
//! From the first release on a golden file is never rewritten: when a format changes, a new version gets new files and the
//! old ones stay.

#![allow(clippy::unwrap_used)]

mod support;

use leasehold_core::codec::{decode, encode};
use leasehold_core::guard::{self, Policy};
use leasehold_core::{
    Checkpoint, Claim, Counters, Drain, Epoch, Event, HolderId, Kind, LeaseName, Line, Lineage, Nonce, OperatorMark,
    Outcome, Ownership, Progress, Reason, Slot, SlotMark, SlotState, TRANSFERS_KEPT, Tenure, Token, Transfer, Ttl,
    format_duration, parse_duration,
};
use proptest::prelude::*;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use support::{CASES, Dice, at, claim, epoch, holder, property, ttl};

const FREE: &[u8] = include_bytes!("golden/v1-free.record");
const FULL: &[u8] = include_bytes!("golden/v1-full.record");
const NEVER_HELD: &[u8] = include_bytes!("golden/v1-never-held.record");
const COUNTERS: &[u8] = include_bytes!("golden/v1-counters.record");

const T0: u64 = 1_700_000_000_000;

fn free() -> Ownership {
    let first = Transfer { outcome: Some(Outcome::Succeeded), held_for_ms: Some(61_250), ..transfer(1) };
    let lineage = Some(Lineage::from_u128(9));
    Ownership { epoch: epoch(1), lineage, transfers: vec![first.into()], ..Ownership::default() }
}

fn transfer(number: u64) -> Transfer {
    Transfer {
        epoch: epoch(number),
        at: at(T0 + number),
        reason: Reason::First,
        nonce: Nonce::from_u128(u128::from(number)),
        from: None,
        to: Some(holder(u128::from(number))),
        by: None,
        why: None,
        slot: None,
        held_for_ms: None,
        outcome: None,
    }
}

/// Every field set, every reason and outcome used, and as many transfers as are kept.
fn full() -> Ownership {
    let mark = |by: &str, why: &str| OperatorMark {
        by: by.parse().unwrap(),
        why: why.parse().unwrap(),
        at: at(T0 + 500),
        nonce: Nonce::from_u128(77),
    };
    let reasons = [
        Reason::First,
        Reason::Released,
        Reason::Expired,
        Reason::Revoked,
        Reason::HandedOff,
        Reason::Recovered,
        Reason::Advanced,
    ];
    let outcomes = [Outcome::Succeeded, Outcome::Failed, Outcome::Lost, Outcome::Expired, Outcome::Evicted];
    let transfers = (0..TRANSFERS_KEPT as u64)
        .map(|n| Transfer {
            reason: reasons[n as usize % reasons.len()],
            from: (n % 2 == 0).then(|| holder(u128::from(n) + 9)),
            to: (n % 7 != 3).then(|| holder(u128::from(n) + 10)),
            by: (n % 7 == 3).then(|| "ann \"the boss\"".parse().unwrap()),
            why: (n % 7 == 3).then(|| "it hangs \\ since nine; naïve".parse().unwrap()),
            slot: (n % 3 == 0).then(|| Slot(at(T0 + 60_000 * n))),
            held_for_ms: (n < 31).then_some(n * 1_000),
            outcome: (n < 31).then(|| outcomes[n as usize % outcomes.len()]),
            ..transfer(n + 10)
        })
        .map(Arc::new)
        .collect();
    Ownership {
        epoch: epoch(41),
        lineage: Some(Lineage::from_u128(9)),
        healed: false,
        newborn: false,
        relocation: None,
        tenure: Some(Tenure {
            holder: HolderId::of(
                "build-7.example",
                4_194_304,
                Nonce::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
                "nightly: café".parse().unwrap(),
            ),
            granted_at: at(T0 + 41),
            deadline: at(T0 + 90_041),
            ttl: ttl(90),
        }),
        slot: Some(SlotMark { slot: Slot(at(T0 + 60_000)), state: SlotState::Running, epoch: epoch(41), runs: 1 }),
        progress: Some(Progress {
            at: at(T0 + 77),
            epoch: epoch(41),
            marker: Some("row 5 of 9".parse().unwrap()),
            checkpoint: Some(Checkpoint::new("{\"row\":5}\n\u{1}\u{2028}").unwrap()),
        }),
        paused: Some(mark("bob", "release week")),
        resumed: Some(mark("cyd", "all clear")),
        drain: Some(Drain::new(None, epoch(41), mark("dee", "node 7 goes down"), ttl(300))),
        forgotten: Some(mark("eve", "it was an experiment")),
        last_run: Some(at(T0 + 40)),
        archived: epoch(15),
        dropped: epoch(9),
        transfers,
    }
}

fn counters() -> Counters {
    let counts: Vec<String> =
        Event::ALL.iter().enumerate().map(|(n, e)| format!("\"{}\":{}", e.as_str(), 10_u64.pow(n as u32))).collect();
    let measured = r#""durations":{"buckets":[0,2],"sum_us":700000,"worst_us":400000},
        "renewals":{"buckets":[1,0,1],"sum_us":4500,"worst_us":4000},"last_run":1700000000000,"last_success":1700000005000"#;
    serde_json::from_str(&format!("{{{},{measured}}}", counts.join(","))).unwrap()
}

#[track_caller]
fn pinned<T>(kind: &str, golden: &[u8], expected: &T)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    assert_eq!(&decode::<T>(kind, golden, "golden").unwrap(), expected);
    let again = encode(kind, expected).unwrap();
    assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(golden.to_vec()).unwrap());
}

#[test]
fn format_1_is_read_and_written_as_it_always_was() {
    pinned("ownership", NEVER_HELD, &Ownership::default());
    pinned("ownership", FREE, &free());
    pinned("ownership", FULL, &full());
    pinned("counters", COUNTERS, &counters());
}

#[test]
fn a_record_of_one_kind_is_not_read_as_another() {
    assert_eq!(decode::<Counters>("counters", FREE, "x").unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(decode::<Ownership>("ownership", COUNTERS, "x").unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn every_flipped_bit_and_every_cut_of_a_full_record_is_noticed() {
    for at in 0..FULL.len() {
        for bit in 0..8 {
            let mut bad = FULL.to_vec();
            bad[at] ^= 1 << bit;
            let error = decode::<Ownership>("ownership", &bad, "x").unwrap_err();
            assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "byte {at} bit {bit}: {error}");
        }
        assert_eq!(decode::<Ownership>("ownership", &FULL[..at], "x").unwrap_err().kind(), Kind::Corrupt);
    }
}

#[test]
fn a_million_mutations_never_pass_as_another_record() {
    let mut dice = Dice::new(Nonce::random().as_u128() as u64);
    let valid = [NEVER_HELD.to_vec(), FREE.to_vec(), FULL[..].to_vec()];
    // The small ones take most of the throws: they are quick, and a short body hides the least.
    let mut unchanged = 0;
    for round in 0..1_000_000_u32 {
        let original = &valid[if round % 64 == 0 { 2 } else { round as usize % 2 }];
        let mut bytes = original.clone();
        for _ in 0..=dice.below(4) {
            let at = dice.below(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
            match dice.below(6) {
                _ if bytes.is_empty() => bytes.push(dice.next() as u8),
                0 => bytes[at] = dice.next() as u8,
                1 => bytes[at] ^= 1 << dice.below(8),
                2 => bytes.insert(at, dice.next() as u8),
                3 => {
                    bytes.remove(at);
                }
                4 => bytes.truncate(at),
                _ => {
                    let from = dice.below(bytes.len());
                    let piece: Vec<u8> = bytes[from..].iter().take(dice.below(9)).copied().collect();
                    bytes.splice(at..at, piece);
                }
            }
        }
        match decode::<Ownership>("ownership", &bytes, "x") {
            Ok(_) => {
                unchanged += 1;
                assert_eq!(&bytes, original, "round {round} passed as a record");
            }
            Err(error) => assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "{error}"),
        }
    }
    assert!(unchanged < 200_000, "{unchanged} mutations changed nothing");
}

#[test]
fn a_holder_that_could_not_be_read_back_is_never_written() {
    // A record that nobody can decode would take the lease out of service for ever.
    for host in ["", "a b", "a:b", "a\nb", "käse", &"x".repeat(65)] {
        let holder = HolderId::of(host, 7, Nonce::from_u128(1), "worker".parse().unwrap());
        let mut record = full();
        Arc::make_mut(&mut record.transfers[0]).to = Some(holder.clone());
        assert_eq!(encode("ownership", &record).unwrap_err().kind(), Kind::Invalid, "host {host:?} was written");
        let mut record = full();
        record.tenure.as_mut().unwrap().holder = holder;
        assert_eq!(encode("ownership", &record).unwrap_err().kind(), Kind::Invalid, "host {host:?} was written");
    }
}

#[test]
fn a_lossy_line_can_always_be_read_back() {
    property(CASES, (any::<String>(), any::<String>()), |(text, fallback)| {
        let line = Line::<8>::lossy(&text, &fallback);
        prop_assert_eq!(&Line::<8>::new(line.as_str()).unwrap(), &line);
        Ok(())
    });
    assert!(!Line::<8>::lossy("", "").as_str().trim().is_empty());
    assert!(Line::<4>::new(Line::<4>::lossy("", "unnamed").as_str()).is_ok());
}

/// Text that is nearly right: pieces of valid input, and anything else.
fn rubbish(dice: &mut Dice, pieces: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..dice.below(7) {
        match dice.below(4) {
            0 => text.push(char::from_u32(dice.next() as u32 % 0x11_0000).unwrap_or('\u{fffd}')),
            1 => text.push(dice.next() as u8 as char),
            _ => text.push_str(pieces[dice.below(pieces.len())]),
        }
    }
    text
}

/// Feeds a parser; what it accepts must come back the same from its text form, what it refuses must fit in one line.
fn feed<T: PartialEq + std::fmt::Debug>(
    pieces: &[&str],
    parse: impl Fn(&str) -> leasehold_core::Result<T>,
    write: impl Fn(&T) -> String,
) {
    let mut dice = Dice::new(Nonce::random().as_u128() as u64);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let text = rubbish(&mut dice, pieces);
        match parse(&text) {
            Ok(value) => {
                accepted += 1;
                assert_eq!(parse(&write(&value)).unwrap(), value, "{text:?} does not come back");
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), Kind::Invalid);
                let message = error.to_string();
                assert!(message.starts_with("invalid ") && !message.chars().any(char::is_control), "{message:?}");
            }
        }
    }
    assert!(accepted >= 100 && refused >= 100, "{accepted} accepted, {refused} refused: too one-sided");
}

const HEX: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn lease_names_take_any_input() {
    feed(&["a", "Z9", "-", "_", ".", "/", "..", "seat-2", "x.lock"], LeaseName::from_str, LeaseName::to_string);
}

#[test]
fn tokens_take_any_input() {
    let good = format!("daily:42:{HEX}:{HEX}:7");
    feed(&[&good, "daily", ":", "42", HEX, "0", "-"], Token::from_str, Token::wire);
}

#[test]
fn durations_take_any_input() {
    let pieces = ["1", "90", "s", "ms", "m", "h", "d", "18446744073709551615", " "];
    feed(&pieces, parse_duration, |d| format_duration(*d));
    feed(&pieces, Ttl::from_str, Ttl::to_string);
}

#[test]
fn epochs_take_any_input() {
    feed(&["0", "42", "9007199254740991", "9007199254740992", "+", "-"], Epoch::from_str, Epoch::to_string);
}

#[test]
fn nonces_take_any_input() {
    feed(&[HEX, "0", "F", "g"], Nonce::from_str, Nonce::to_string);
}

#[test]
fn holders_take_any_input() {
    let good = format!("{HEX}:7:host:worker");
    feed(&[&good, HEX, ":", "7", "host", "worker", "+7"], HolderId::from_str, |id| String::from(id.clone()));
}

#[test]
fn lines_take_any_input() {
    feed(&["a", "word", " ", "\u{2028}", "\"", "ß"], Line::<12>::from_str, Line::to_string);
}

#[test]
fn a_line_is_one_line() {
    for bad in ["a\nb", "a\rb", "a\u{85}b", "a\u{2028}b", "a\u{2029}b", "a\u{202e}b", "a\u{2066}b"] {
        assert_eq!(Line::<100>::new(bad).unwrap_err().kind(), Kind::Invalid, "{bad:?}");
        assert_eq!(Line::<100>::lossy(bad, "x").as_str(), "ab");
    }
}

#[test]
fn only_whole_dot_segments_are_refused() {
    for bad in [".", "..", "a/.", "../a", "a/../b"] {
        assert_eq!(LeaseName::new(bad).unwrap_err().kind(), Kind::Invalid, "{bad}");
    }
    for good in [".a", "a/.b", "a.", "a..b", "...", "a.lock", "-a"] {
        assert!(LeaseName::new(good).is_ok(), "{good} was refused");
    }
}

/// A record whose history is these rows, as a store would give it: with a checksum that fits.
fn with_rows(rows: &str) -> leasehold_core::Result<Ownership> {
    let body: serde_json::Value = serde_json::from_str(&format!("{{\"epoch\":1,\"transfers\":{rows}}}")).unwrap();
    decode("ownership", &encode("ownership", &body).unwrap(), "x")
}

#[test]
fn a_row_that_is_not_one_is_corrupt() {
    let id = format!("{HEX}:7:host:worker");
    for good in [
        format!("[[1,2,\"first\",\"{HEX}\"]]"),
        format!("[[1,2,\"first\",null,\"{id}\"]]"),
        format!("[[1,2,\"first\",\"{HEX}\",null,3,\"lost\",4,\"{id}\",\"ann\",\"why\"]]"),
    ] {
        let record = with_rows(&good).unwrap();
        assert_eq!(record.transfers[0].nonce, HEX.parse().unwrap(), "{good}");
    }
    for bad in [
        "{}".to_owned(),
        "[1]".into(),
        "[null]".into(),
        "[[]]".into(),
        "[{}]".into(),
        "[[1,2,\"first\"]]".into(),
        // Neither a nonce nor a holder that has one.
        "[[1,2,\"first\",null]]".into(),
        "[[1,2,\"first\",null,null,3,\"lost\"]]".into(),
        format!("[[null,2,\"first\",\"{HEX}\"]]"),
        format!("[[9007199254740992,2,\"first\",\"{HEX}\"]]"),
        format!("[[1,-2,\"first\",\"{HEX}\"]]"),
        format!("[[1,2,\"last\",\"{HEX}\"]]"),
        format!("[[1,2,\"first\",\"{HEX}0\"]]"),
        format!("[[1,2,\"first\",null,\"{HEX}:7:host\"]]"),
        format!("[[1,2,\"first\",null,\"{HEX}:7:ho st:worker\"]]"),
        format!("[[1,2,\"first\",null,\"{HEX}:7:host:wor\\tker\"]]"),
        format!("[[1,2,\"first\",null,\"{id}\",3,\"won\"]]"),
        format!("[[1,2,\"first\",null,\"{id}\",null,null,null,null,\"a\\nb\"]]"),
        format!("[[1,2,\"first\",null,\"{id}\",null,null,null,null,null,\"\"]]"),
        // A place more than there are.
        format!("[[1,2,\"first\",null,\"{id}\",3,\"lost\",4,\"{id}\",\"ann\",\"why\",null]]"),
    ] {
        assert_eq!(with_rows(&bad).unwrap_err().kind(), Kind::Corrupt, "{bad} passed");
    }
}

#[test]
fn rows_take_any_input() {
    let id = format!("\"{HEX}:7:host:worker\"");
    let nonce = format!("\"{HEX}\"");
    let mut dice = Dice::new(Nonce::random().as_u128() as u64);
    let good = ["1", "2", "\"first\"", &nonce, &id, "3", "\"lost\"", "4", &id, "\"ann\"", "\"why\""];
    let others = ["null", "true", "-1", "1.5", "\"\"", "\"\\t\"", "[]", "{}", "18446744073709551616", &id, &nonce, "7"];
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let mut places: Vec<&str> = good[..dice.below(good.len() + 1)].to_vec();
        for _ in 0..dice.below(3) {
            let other = others[dice.below(others.len())];
            match places.len() {
                0 => places.push(other),
                len if dice.below(4) == 0 => places.insert(dice.below(len + 1), other),
                len => places[dice.below(len)] = other,
            }
        }
        let row = format!("[[{}]]", places.join(","));
        match with_rows(&row) {
            Ok(record) => {
                accepted += 1;
                let bytes = encode("ownership", &record).unwrap();
                assert_eq!(decode::<Ownership>("ownership", &bytes, "x").unwrap(), record, "{row} does not come back");
            }
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), Kind::Corrupt, "{row}");
            }
        }
    }
    assert!(accepted >= 100 && refused >= 100, "{accepted} accepted, {refused} refused: too one-sided");
}

/// Any printable line, with what JSON, rows and holders give a meaning to.
fn lines<const MAX: usize>() -> impl Strategy<Value = Line<MAX>> {
    prop_oneof!["\\PC{1,16}", "[\"\\\\:,\\[\\] nul]{1,16}"].prop_map(|text| Line::lossy(&text, "x"))
}

fn holders() -> impl Strategy<Value = HolderId> {
    ("[!-9;-~]{1,64}", any::<u32>(), nonces(), lines())
        .prop_map(|(host, pid, nonce, label)| HolderId::of(host, pid, nonce, label))
}

fn transfers() -> impl Strategy<Value = Arc<Transfer>> {
    let reasons = prop::sample::select(vec![
        Reason::First,
        Reason::Released,
        Reason::Expired,
        Reason::Revoked,
        Reason::HandedOff,
        Reason::Recovered,
        Reason::Advanced,
        Reason::Rewound,
        Reason::Triggered,
    ]);
    let outcomes = prop::sample::select(vec![
        Outcome::Succeeded,
        Outcome::Failed,
        Outcome::Lost,
        Outcome::NotStarted,
        Outcome::Drained,
        Outcome::Expired,
        Outcome::Evicted,
    ]);
    let began = (0..=Epoch::MAX.get(), any::<u64>(), reasons, nonces(), any::<bool>());
    let parties = (prop::option::of(holders()), prop::option::of(holders()));
    let texts = (prop::option::of(lines()), prop::option::of(lines()));
    let ended = (prop::option::of(any::<u64>()), prop::option::of(any::<u64>()), prop::option::of(outcomes));
    (began, parties, texts, ended).prop_map(|(began, (from, to), (by, why), (slot, held_for_ms, outcome))| {
        let (number, moment, reason, nonce, own) = began;
        // Every transfer that a request makes has its holder's nonce; any other must come back too.
        let nonce = to.as_ref().filter(|_| own).map_or(nonce, |to| to.nonce());
        let slot = slot.map(|ms| Slot(at(ms)));
        Transfer { epoch: epoch(number), at: at(moment), reason, nonce, from, to, by, why, slot, held_for_ms, outcome }
            .into()
    })
}

#[test]
fn any_history_survives_its_rows() {
    property(CASES, prop::collection::vec(transfers(), 0..=TRANSFERS_KEPT), |transfers| {
        let record = Ownership { transfers, ..full() };
        let bytes = encode("ownership", &record).unwrap();
        prop_assert_eq!(decode::<Ownership>("ownership", &bytes, "x").unwrap(), record);
        Ok(())
    });
}

fn nonces() -> impl Strategy<Value = Nonce> {
    any::<u128>().prop_map(Nonce::from_u128)
}

#[test]
fn tokens_nonces_and_epochs_survive_their_text_form() {
    let name = "[A-Za-z0-9_-]{1,20}(/[A-Za-z0-9_-]{1,20}){0,3}";
    property(CASES, (name, 1..=Epoch::MAX.get(), nonces(), any::<u64>()), |(lease, number, nonce, seq)| {
        let token =
            Token { lease: lease.parse().unwrap(), lineage: Lineage::from_u128(9), epoch: epoch(number), nonce, seq };
        prop_assert_eq!(&token.wire().parse::<Token>().unwrap(), &token);
        prop_assert_eq!(token.claim(), Claim { epoch: token.epoch, nonce });
        prop_assert_eq!(nonce.to_string().parse::<Nonce>().unwrap(), nonce);
        prop_assert_eq!(number.to_string().parse::<Epoch>().unwrap(), token.epoch);
        Ok(())
    });
}

#[test]
fn durations_survive_their_text_form() {
    property(CASES, 0..1_000 * 365 * 86_400_000_u64, |ms| {
        let duration = Duration::from_millis(ms);
        prop_assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration);
        Ok(())
    });
}

#[test]
fn holders_and_lines_survive_their_text_form() {
    property(CASES, ("[!-9;-~]{1,64}", any::<u32>(), nonces(), "\\PC{1,16}"), |(host, pid, nonce, label)| {
        let Ok(label) = label.parse() else { return Ok(()) };
        let id = HolderId::of(host, pid, nonce, label);
        prop_assert_eq!(&String::from(id.clone()).parse::<HolderId>().unwrap(), &id);
        let mut record = full();
        record.tenure.as_mut().unwrap().holder = id;
        let bytes = encode("ownership", &record).unwrap();
        prop_assert_eq!(decode::<Ownership>("ownership", &bytes, "x").unwrap(), record);
        Ok(())
    });
}

#[test]
fn a_guard_never_admits_what_is_stale_foreign_or_from_another_grant() {
    // Small numbers, so that they meet.
    let token = || (0..2_usize, 1..5_u64, 0..3_u128, 0..4_u64);
    let policy = prop_oneof![Just(Policy::Reentrant), Just(Policy::Ordered), Just(Policy::OncePerEpoch)];
    let script = (policy, prop::collection::vec((token(), any::<bool>()), 1..30));
    property(CASES, script, |(policy, tokens)| {
        let mut high: Option<guard::HighWater> = None;
        for ((lease, number, nonce, seq), seals) in tokens {
            let token = Token {
                lease: ["x", "y"][lease].parse().unwrap(),
                lineage: Lineage::from_u128(9),
                epoch: epoch(number),
                nonce: claim(1, nonce).nonce,
                seq,
            };
            let next =
                if seals { guard::seal(high.as_ref(), &token) } else { guard::admit(high.as_ref(), &token, policy) };
            let Ok(next) = next else { continue };
            prop_assert_eq!((&next.lease, next.epoch, next.nonce), (&token.lease, token.epoch, token.nonce));
            if let Some(high) = &high {
                prop_assert_eq!(&high.lease, &token.lease);
                prop_assert!(token.epoch >= high.epoch);
                if token.epoch == high.epoch {
                    prop_assert_eq!(token.nonce, high.nonce);
                    let later = next.seq > high.seq;
                    prop_assert!(later != seals, "a seal counts as a write, or a write does not");
                }
            }
            high = Some(next);
        }
        Ok(())
    });
}
