//! A clock that is off, by libfaketime.
//!
//! Promise: what the library left in shared memory for processes that were killed is removed, before a test and after it: a
//! new process of the same number, and of another user, could not start with it. Non-promise: what belongs to a number
//! that is in use stays.

use std::path::Path;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
const SHARED_MEMORY: &str = "/dev/shm";
/// How the names of the library's files begin; the number of a process follows.
const NAMES: [&str; 2] = ["sem.faketime_sem_", "faketime_shm_"];

/// The environment of processes whose clock is off. To be dropped after they have ended.
#[derive(Debug)]
pub struct FakeTime {
    env: Vec<(&'static str, String)>,
}

impl FakeTime {
    /// By so many seconds: `+3600`.
    pub fn offset(offset: &str) -> Self {
        FakeTime::by("FAKETIME", offset)
    }

    /// By what is in this file, at any time.
    pub fn file(path: &Path) -> Self {
        FakeTime::by("FAKETIME_TIMESTAMP_FILE", &path.display().to_string())
    }

    fn by(name: &'static str, value: &str) -> Self {
        clear();
        let env = vec![
            ("LD_PRELOAD", LIBRARY.to_owned()),
            (name, value.to_owned()),
            // Each process its own: a cache in shared memory would tie them together.
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DISABLE_SHM", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ];
        FakeTime { env }
    }

    /// The variables to set.
    pub fn env(&self) -> Vec<(&str, &str)> {
        self.env.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }
}

impl Drop for FakeTime {
    fn drop(&mut self) {
        clear();
    }
}

fn clear() {
    for entry in std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = NAMES.iter().find_map(|start| name.strip_prefix(start));
        if number.is_some_and(|number| !Path::new("/proc").join(number).exists()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
