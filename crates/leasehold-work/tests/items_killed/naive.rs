//! The negative control: a queue that looks, and then acts on what it saw.

use crate::mortal::say;
use std::fs;
use std::path::Path;

pub fn fill(folder: &Path, items: usize) {
    fs::create_dir_all(folder.join("done")).unwrap();
    fs::create_dir(folder.join("ready")).unwrap();
    for n in 0..items {
        fs::write(folder.join(format!("ready/n{n}")), "x").unwrap();
    }
}

/// As people write it: take the first, do it, remove it.
pub fn main(folder: &str) {
    let folder = Path::new(folder);
    loop {
        let mut names: Vec<String> = fs::read_dir(folder.join("ready"))
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        let Some(name) = names.first() else { return };
        say(&format!("claimed {name} 1"));
        if fs::write(folder.join("done").join(name), "x").is_ok() {
            say(&format!("accepted {name} 1"));
        }
        let _ = fs::remove_file(folder.join("ready").join(name));
    }
}
