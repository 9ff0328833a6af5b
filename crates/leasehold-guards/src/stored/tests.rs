//! The fence over a store that loses answers.

use super::*;
use async_trait::async_trait;
use leasehold_core::MemoryStore;
use leasehold_core::store::{Capabilities, Change, Next, Page, Range, Reading, Survey, Swap, Watch};
use std::sync::Mutex;

/// What becomes of the next swaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It is visible, the answer is lost, and nothing is known to be durable.
    Visible,
    /// It is lost, and so is the answer.
    Lost,
    /// It is lost, so is the answer, and another writes meanwhile.
    Overtaken,
    /// Surely not applied.
    Away,
    None,
}

/// A store that fails the next swaps as it is told.
#[derive(Debug)]
struct Faulty {
    inner: MemoryStore,
    faults: Mutex<Vec<Fault>>,
    /// How many swaps were answered with *done*.
    answered: Mutex<usize>,
}

impl Faulty {
    fn new() -> Arc<Self> {
        Arc::new(Faulty { inner: MemoryStore::default(), faults: Mutex::default(), answered: Mutex::default() })
    }

    fn fail(&self, faults: &[Fault]) {
        *self.faults.lock().unwrap() = faults.iter().rev().copied().collect();
    }

    fn answered(&self) -> usize {
        *self.answered.lock().unwrap()
    }
}

#[async_trait]
impl Store for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &Key) -> Result<Reading> {
        self.inner.read(key).await
    }

    async fn write(&self, change: &Change<'_>) -> Result<Swap> {
        let unknown = || Error::new(Kind::Indeterminate, "the answer was lost");
        let fault = self.faults.lock().unwrap().pop().unwrap_or(Fault::None);
        match fault {
            Fault::Visible => {
                self.inner.write(change).await?;
                Err(unknown())
            }
            Fault::Lost => Err(unknown()),
            Fault::Overtaken => {
                let bytes = codec::encode(KIND, &FenceRecord { tag: Some(Nonce::random()), ..content(43) })?;
                self.inner.write(&Change { next: Next::Put(&bytes), ..*change }).await?;
                Err(unknown())
            }
            Fault::Away => Err(Error::new(Kind::Unavailable, "the store is away")),
            Fault::None => {
                let answer = self.inner.write(change).await?;
                *self.answered.lock().unwrap() += usize::from(matches!(answer, Swap::Done { .. }));
                Ok(answer)
            }
        }
    }

    async fn list(&self, shelf: Shelf, range: Range<'_>) -> Result<Page> {
        self.inner.list(shelf, range).await
    }

    async fn watch(&self, key: &Key) -> Result<Watch> {
        self.inner.watch(key).await
    }

    async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}

fn high(epoch: u64) -> HighWater {
    HighWater {
        lease: "daily".parse().unwrap(),
        lineage: Lineage::from_u128(1),
        epoch: Epoch::new(epoch).unwrap(),
        nonce: Nonce::from_u128(u128::from(epoch)),
        seq: 0,
    }
}

fn content(epoch: u64) -> FenceRecord {
    FenceRecord { high: Some(high(epoch)), ..FenceRecord::default() }
}

fn fence(store: Arc<dyn Store>) -> FenceDocument {
    FenceDocument::new(&Coordinator::new(store), &"http/x".parse().unwrap())
}

#[tokio::test(flavor = "current_thread")]
async fn of_two_over_one_reading_one_succeeds() {
    let fence = fence(Arc::new(MemoryStore::default()));
    let seen = fence.look().await.unwrap();
    assert!(seen.record.high.is_none());
    let put = fence.put(&seen, content(41)).await.unwrap().unwrap();
    assert!(fence.put(&seen, content(40)).await.unwrap().is_none());
    assert_eq!(fence.look().await.unwrap().record.high, content(41).high);
    assert!(fence.put(&put, content(42)).await.unwrap().is_some());
    assert_eq!(fence.look().await.unwrap().record.high, content(42).high);
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_only_visible_is_confirmed_by_an_answered_write() {
    let store = Faulty::new();
    let fence = fence(store.clone());
    let seen = fence.look().await.unwrap();
    store.fail(&[Fault::Visible]);
    let put = fence.put(&seen, content(41)).await.unwrap().unwrap();
    assert_eq!(store.answered(), 1, "it was believed without an answer");
    // The revision is that of the confirming write: the next one is built on it.
    store.fail(&[Fault::Visible, Fault::Visible]);
    assert!(fence.put(&put, content(42)).await.unwrap().is_some());
    assert_eq!(store.answered(), 2);
    assert_eq!(fence.look().await.unwrap().record.high, content(42).high);
}

#[tokio::test(flavor = "current_thread")]
async fn what_cannot_be_confirmed_stays_unknown() {
    for faults in [
        &[Fault::Visible; MAX_ATTEMPTS as usize][..],
        &[Fault::Lost; MAX_ATTEMPTS as usize],
        &[Fault::Visible, Fault::Away],
        &[Fault::Lost, Fault::Away],
    ] {
        let store = Faulty::new();
        let fence = fence(store.clone());
        let seen = fence.look().await.unwrap();
        store.fail(faults);
        let error = fence.put(&seen, content(41)).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Indeterminate, "{faults:?}");
        assert_eq!(store.answered(), 0, "{faults:?}");
    }
    let store = Faulty::new();
    let fence = fence(store.clone());
    let seen = fence.look().await.unwrap();
    store.fail(&[Fault::Away]);
    assert_eq!(fence.put(&seen, content(41)).await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test(flavor = "current_thread")]
async fn what_was_lost_is_put_again_and_only_over_the_same_reading() {
    let store = Faulty::new();
    let fence = fence(store.clone());
    let seen = fence.look().await.unwrap();
    store.fail(&[Fault::Lost]);
    let put = fence.put(&seen, content(41)).await.unwrap().unwrap();
    assert_eq!((store.answered(), fence.look().await.unwrap().record.high), (1, content(41).high));
    store.fail(&[Fault::Overtaken]);
    assert!(fence.put(&put, content(42)).await.unwrap().is_none());
    assert_eq!(fence.look().await.unwrap().record.high, content(43).high);
}

#[test]
fn files_and_store_are_merged_and_neither_forgets_for_the_other() {
    let stored = |high: Option<HighWater>| FenceRecord { high, ..FenceRecord::default() };
    let merged = |content: &FenceRecord, filed: Option<HighWater>| content.merged("http:x", filed.as_ref());
    assert_eq!(merged(&stored(None), None).unwrap().high, None);
    for (in_store, in_files, is_behind) in
        [(Some(5), None, false), (None, Some(5), true), (Some(5), Some(4), false), (Some(4), Some(5), true)]
    {
        let found = merged(&stored(in_store.map(high)), in_files.map(high)).unwrap();
        assert_eq!((found.high, found.is_behind, found.is_adopted), (Some(high(5)), is_behind, false));
    }
    let rival = HighWater { nonce: Nonce::from_u128(99), ..high(5) };
    assert_eq!(merged(&stored(Some(rival)), Some(high(5))).unwrap_err().kind(), Kind::Regressed);
    let other = HighWater { lineage: Lineage::from_u128(2), ..high(9) };
    let error = merged(&stored(Some(other.clone())), Some(high(5))).unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().starts_with("not this lease"), "{error}");
    let adoption = Adoption::new(&high(5), &"me".parse().unwrap(), &"moved".parse().unwrap());
    let adopted = FenceRecord { high: Some(other.clone()), adopted: vec![adoption], ..FenceRecord::default() };
    let found = merged(&adopted, Some(high(4))).unwrap();
    assert_eq!((found.high, found.is_adopted), (Some(other), true));
    // What the files have seen later than the adoption was not given away.
    let error = merged(&adopted, Some(high(6))).unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().starts_with("not this lease"), "{error}");
}

#[test]
fn a_copy_is_older_only_if_the_other_fence_says_all_that_it_says() {
    let stored = |high: HighWater, adopted: Vec<Adoption>| {
        codec::encode(KIND, &FenceRecord { high: Some(high), adopted, ..FenceRecord::default() }).unwrap()
    };
    let key = Key::new(Shelf::Fence, &"http/api".parse().unwrap());
    let is_older = |old: &[u8], new: &[u8]| is_older_copy(&key, old, new).unwrap();
    let (four, five) = (stored(high(4), vec![]), stored(high(5), vec![]));
    assert!(is_older(&four, &five) && is_older(&five, &five) && !is_older(&five, &four));
    let rival = stored(HighWater { nonce: Nonce::from_u128(99), ..high(5) }, vec![]);
    assert!(!is_older(&rival, &five), "two tenures of one epoch");
    let other = HighWater { lineage: Lineage::from_u128(2), ..high(9) };
    assert!(!is_older(&four, &stored(other.clone(), vec![])), "of another lease");
    let adopted = vec![Adoption::new(&high(4), &"me".parse().unwrap(), &"moved".parse().unwrap())];
    let given_away = stored(other, adopted);
    assert!(is_older(&four, &given_away) && !is_older(&five, &given_away) && !is_older(&given_away, &five));
}
