//! A worker: takes items from a queue, one after the other, and leaves when there is none.
//!
//!     cargo run -p leasehold --example worker

use leasehold::{Leases, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let emails = Leases::on(leasehold::store::memory()).queue("emails")?;
    for to in ["ada", "bob", "cy"] {
        emails.add(format!("to: {to}")).await?;
    }
    let mut worker = emails.worker()?;
    while let Some(item) = worker.claim_within("0s").await? {
        println!("{} (attempt {}): {}", item.id(), item.number(), String::from_utf8_lossy(item.payload()));
        item.complete_with(Some("sent"), Vec::new()).await?;
    }
    Ok(())
}
