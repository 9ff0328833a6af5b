//! A holder that was away too long comes back, and what it writes is refused.
//!
//!     cargo run -p leasehold --example fenced_writer

use leasehold::{Outcome, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("leasehold-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| leasehold::Error::unavailable("no folder", error))?;
    let leases = leasehold::connect(&format!("sqlite:{}", folder.join("leases.db").display())).await?;
    let report = leasehold::guard::file(folder.join("report.txt"))?;

    // A tenure can be passed on; it does not keep the lease. So this is what a process that was stopped wakes up with.
    let asleep = {
        let held = leases.lease("daily").ttl("1s").guard(&report).acquire().await?;
        report.write(&held, "first").await?;
        held.token().clone()
    };
    let next = leases.lease("daily").wait("10s").guard(&report).acquire().await?;
    match report.write(&asleep, "stale").await {
        Err(refused) => println!("{refused}"),
        Ok(_) => unreachable!("a stale write is refused"),
    }
    report.write(&next, "second").await?;
    println!("the report was written under {}", next.token());
    next.release(Outcome::Succeeded).await?;
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}
