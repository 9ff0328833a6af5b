//! What is kept of a run that failed, for reading.

use crate::facts::History;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Copies the logs, and writes down what happened; gives the folder.
pub(crate) fn keep(kept: &Path, seed: u64, root: &Path, history: &History) -> std::io::Result<PathBuf> {
    let folder = kept.join(format!("torture-{seed}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(root.join("log"), folder.join("commands.log"))?;
    for entry in std::fs::read_dir(root.join("logs"))?.flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let mut text = String::new();
    for happened in &history.happened {
        let _ = writeln!(text, "{} {} {:?}", happened.from, happened.to, happened.what);
    }
    std::fs::write(folder.join("faults"), text)?;
    let mut text = format!("healed {} looked {}\n", history.healed, history.looked);
    let _ = writeln!(text, "{:#?}\n{:#?}\n{:#?}\n{:?}", history.actors, history.items, history.added, history.damaged);
    for (job, slots) in &history.slots {
        let _ = writeln!(text, "{job} due to {}", slots.due_to);
        for (slot, seen) in &slots.seen {
            let _ = writeln!(text, "  {slot} {seen:?}");
        }
        for (end, outcome) in &slots.ends {
            let _ = writeln!(text, "  end {end:?} {outcome}");
        }
    }
    std::fs::write(folder.join("seen"), text)?;
    Ok(folder)
}
