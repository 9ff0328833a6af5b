//! A fenced writer: a holder that was away too long comes back, and its write is refused.

use leasehold_core::guard::{HighWater, Policy, admit, seal};
use leasehold_core::{Acquired, Ask, Coordinator, Grant, HolderId, MemoryStore, Result, Token, clock::ManualClock};
use std::{sync::Arc, time::Duration};

/// A resource that remembers the highest token it has seen, next to what is written to it.
#[derive(Default)]
struct Report(Option<HighWater>, String);

impl Report {
    fn write(&mut self, token: &Token, text: &str) -> Result<()> {
        self.0 = Some(admit(self.0.as_ref(), token, Policy::Reentrant).map_err(|r| r.into_error("report"))?);
        self.1 = text.into();
        Ok(())
    }
}

async fn acquire(leases: &Coordinator) -> Result<Grant> {
    match leases.acquire(&"daily".parse()?, &Ask::new(HolderId::new(None), "90s".parse()?)).await? {
        Acquired::Granted(grant) => Ok(*grant),
        Acquired::Refused { refusal, .. } => panic!("somebody else is at it: {refusal:?}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let clock = Arc::new(ManualClock::default());
    let leases = Coordinator::with_clock(Arc::new(MemoryStore::with_clock(clock.clone())), clock.clone());
    let (mut report, zombie) = (Report::default(), acquire(&leases).await?);
    report.write(zombie.token(), "first")?;
    clock.advance(Duration::from_secs(91)); // the first holder sleeps past its deadline
    let next = acquire(&leases).await?;
    report.0 = Some(seal(report.0.as_ref(), next.token()).map_err(|r| r.into_error("report"))?);
    println!("{}", report.write(zombie.token(), "stale").expect_err("a zombie is fenced"));
    report.write(next.token(), "second")?;
    println!("the report says `{}`, written under {}", report.1, next.token());
    Ok(())
}
