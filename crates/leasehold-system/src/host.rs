//! Who this machine is.

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
