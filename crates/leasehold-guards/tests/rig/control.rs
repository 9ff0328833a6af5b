//! The negative control: a fence file that is read, compared and written, as people write it at first.

use super::artifact::text;
use leasehold_core::Nonce;
use std::fs;
use std::path::Path;

/// Admits equal or higher epochs, and knows no nonce. Every step of it is right; together they are not.
pub fn write(path: &Path, epoch: u64, rival: u64, mut pause: impl FnMut()) -> Result<(), String> {
    pause();
    let fence = path.with_extension("fence");
    let seen: u64 = fs::read_to_string(&fence).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if epoch < seen {
        return Err(format!("fenced held={epoch} seen={seen}"));
    }
    pause();
    replace(&fence, &epoch.to_string())?;
    pause();
    replace(path, &text(epoch, rival))
}

fn replace(path: &Path, text: &str) -> Result<(), String> {
    let staged = path.with_extension(format!("tmp-{}", Nonce::random()));
    let written = fs::write(&staged, text).and_then(|()| fs::rename(&staged, path));
    written.map_err(|e| format!("unavailable {e}"))
}
