//! Who this machine is.

use crate::native;

/// The machine's name, or `unknown-host` where it has none that is printable.
pub fn name() -> String {
    let uname = rustix::system::uname();
    let name: String = uname.nodename().to_string_lossy().chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
    if name.is_empty() { "unknown-host".into() } else { name }
}

/// This process's number.
pub fn pid() -> u32 {
    std::process::id()
}

/// What tells this boot of the machine from every other; none where the system does not say.
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
