//! Switches that take a mend back, so that the torture can be seen to find what was mended.
//!
//! Promise: without the feature `undo`, which no other feature turns on but the command's own `undo`, nothing is read and
//! every mend holds. Non-promise: not every mend has a switch; those that no fault of the torture can trigger have tests
//! of their own.

/// A mend that can be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    /// A run's end is told until the trust window ends, not once.
    EndToldOnce,
}

/// The variable that names what is taken back.
pub const VARIABLE: &str = "LEASEHOLD_UNDO";

impl Mend {
    /// All of them.
    pub const ALL: &[Mend] = &[Mend::EndToldOnce];

    /// The word in [`VARIABLE`] and for `cargo xtask torture --undo`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mend::EndToldOnce => "end-told-once",
        }
    }
}

/// Whether this mend is taken back in this process.
#[cfg(feature = "undo")]
pub fn undone(mend: Mend) -> bool {
    std::env::var(VARIABLE).is_ok_and(|names| names == mend.as_str())
}

/// No: this build keeps every mend.
#[cfg(not(feature = "undo"))]
pub const fn undone(_mend: Mend) -> bool {
    false
}
