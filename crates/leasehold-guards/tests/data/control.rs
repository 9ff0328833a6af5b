//! The negative controls: check, then write, as people do it at first; and a number alone as a fence.

use crate::databases::{Database, Engine};
use crate::worker::object_at;
use leasehold_core::{Error, Kind, Result};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use std::time::Duration;

/// Reads the fence's number, compares, writes: each a statement of its own.
pub async fn write_row(url: &str, resource: &str, epoch: u64, sql: &str, mut pause: impl FnMut()) -> Result<()> {
    let db = Database::at(url);
    let read = format!("SELECT epoch FROM naive WHERE id = '{resource}'");
    let seen = db.try_ask(&read).await.map_err(|e| Error::new(Kind::Unavailable, e))?;
    let seen: u64 = seen.parse().unwrap_or(0);
    if epoch < seen {
        return Err(Error::new(Kind::Fenced, format!("held={epoch} seen={seen}")));
    }
    pause();
    let moved = format!("UPDATE naive SET epoch = {epoch} WHERE id = '{resource}'");
    let done = async {
        db.try_execute(&moved).await?;
        pause();
        db.try_execute(sql).await
    };
    done.await.map_err(|e| Error::new(Kind::Unavailable, e))
}

/// The same for an object: looks at it, compares, puts without a condition.
pub async fn write_object(url: &str, name: &str, epoch: u64, mut pause: impl FnMut()) -> Result<()> {
    let (base, query) = url.split_once('?').unwrap();
    let full: leasehold_stores::StoreUrl = format!("{base}/{name}?{query}").parse()?;
    let store = leasehold_stores::object::client(full.address().unwrap())?;
    let key = Path::from(full.address().unwrap().path.clone());
    let unknown = |e: object_store::Error| Error::new(Kind::Unavailable, e.to_string());
    let seen = match store.get(&key).await {
        Ok(found) => String::from_utf8_lossy(&found.bytes().await.map_err(unknown)?).parse().unwrap_or(0),
        Err(_) => 0,
    };
    if epoch < seen {
        return Err(Error::new(Kind::Fenced, format!("held={epoch} seen={seen}")));
    }
    pause();
    store.put(&key, PutPayload::from(epoch.to_string())).await.map_err(unknown).map(drop)
}

/// Who wrote last, by the control's own content.
pub async fn naive_object(url: &str, name: &str) -> u64 {
    let (base, query) = url.split_once('?').unwrap();
    let full: leasehold_stores::StoreUrl = format!("{base}/{name}?{query}").parse().unwrap();
    let store = leasehold_stores::object::client(full.address().unwrap()).unwrap();
    let found = store.get(&Path::from(full.address().unwrap().path.clone())).await.unwrap();
    String::from_utf8_lossy(&found.bytes().await.unwrap()).parse().unwrap()
}

/// Who wrote last, by the fence. Whoever only looks on may ask again: a stand-in under load drops a call now and then.
pub async fn fenced_object(url: &str, name: &str) -> u64 {
    use leasehold_core::guard::Guard;
    let guard = object_at(url, name, None).unwrap();
    for pause in [0, 100, 1_000, 5_000] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        match guard.high_water().await {
            Err(e) if e.kind() == Kind::Unavailable => eprintln!("{name}: {e}"),
            answer => return answer.unwrap().map_or(0, |high| high.epoch.get()),
        }
    }
    panic!("{name}: who wrote last cannot be read")
}

pub const fn is_local(engine: Engine) -> bool {
    matches!(engine, Engine::Sqlite)
}
