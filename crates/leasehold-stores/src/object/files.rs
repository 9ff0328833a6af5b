//! Plain files below an address in a bucket, for data that is not a record:
//! nothing is compared, and the last write wins.

use super::config;
use crate::url::Address;
use futures_util::TryStreamExt;
use leasehold_core::{Error, Kind, Result};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::fmt;
use std::sync::Arc;

/// The folder for an address that names a bucket and nothing below it.
const FOLDER: &str = "leasehold-output";

/// A folder of a bucket.
pub struct Files {
    cloud: Arc<dyn ObjectStore>,
    folder: Path,
    address: String,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Files({})", self.address)
    }
}

impl Files {
    /// Finds the credentials. Nothing is sent before the first call.
    pub fn open(address: &Address) -> Result<Self> {
        let cloud = config::bucket(address, &crate::credentials::env())?.cloud;
        let path = address.path.trim_matches('/');
        let folder = Path::parse(if path.is_empty() { FOLDER } else { path });
        let folder = folder.map_err(|e| Error::new(Kind::Invalid, "invalid path in the bucket").with_source(e))?;
        Ok(Files { cloud, folder, address: address.to_string() })
    }

    /// Stores a file.
    pub async fn put(&self, name: &str, content: Vec<u8>) -> Result<()> {
        self.cloud.put(&self.path(name), content.into()).await.map(drop).map_err(|e| self.failed(e))
    }

    /// A file's content; none if it does not exist, and an error if it has more than so many bytes.
    pub async fn get(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
        match self.cloud.get(&self.path(name)).await {
            Ok(found) if found.meta.size > most => {
                let (folder, bytes) = (&self.address, found.meta.size);
                let message = format!("`{name}` in `{folder}` has {bytes} bytes; at most {most} are read");
                Err(Error::new(Kind::Invalid, message))
            }
            Ok(found) => found.bytes().await.map(|bytes| Some(bytes.to_vec())).map_err(|e| self.failed(e)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The files in a folder: for each, when it was stored, in milliseconds since 1970, and its name.
    pub async fn list(&self, folder: &str) -> Result<Vec<(i64, String)>> {
        let below = format!("{}/", self.folder);
        let found: Vec<_> =
            self.cloud.list(Some(&self.path(folder))).try_collect().await.map_err(|e| self.failed(e))?;
        let name = |path: &Path| path.as_ref().strip_prefix(&below).map(String::from);
        let named =
            found.into_iter().filter_map(|file| Some((file.last_modified.timestamp_millis(), name(&file.location)?)));
        Ok(named.collect())
    }

    /// Removes a file, if it exists.
    pub async fn remove(&self, name: &str) -> Result<()> {
        match self.cloud.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.folder.clone(), |path, part| path.join(part))
    }

    fn failed(&self, error: object_store::Error) -> Error {
        Error::unavailable(format!("cannot use `{}`", self.address), error)
    }
}
