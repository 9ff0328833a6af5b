//! The identity of this machine.

use crate::native;

/// The machine's name: its printable ASCII characters, at most 64 of them, or `unknown-host` if it has none.
pub fn name() -> String {
    let uname = rustix::system::uname();
    let name: String = uname.nodename().to_string_lossy().chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
    if name.is_empty() { "unknown-host".into() } else { name }
}

/// The id of this process.
pub fn pid() -> u32 {
    std::process::id()
}

/// An id that is different for each boot of the machine; none where the system has no such id.
pub fn boot_id() -> Option<String> {
    native::boot_id().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_boot_has_one_id() {
        let id = super::boot_id().unwrap();
        assert_eq!(super::boot_id(), Some(id.clone()));
        assert!(id.len() >= 32, "{id}");
    }
}
