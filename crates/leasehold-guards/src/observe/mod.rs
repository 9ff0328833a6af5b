//! The named steps of every guard, announced to an [`Observer`](leasehold_core::observe::Observer) before each is taken, so
//! that tests can stop, kill or fail a writer there.
//!
//! Promise: without an observer a step costs nothing. Non-promise: an observer is for tests and for saying how far a
//! write has come; it cannot let a refused write through.

/// Declares a guard's steps in the order in which they are taken. Each has the words that follow "cannot" in a message.
#[cfg(any(feature = "file", feature = "git"))]
macro_rules! steps {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $step:ident = $words:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$about])* $step,)* }

        impl $name {
            /// Every step, in the order in which they are taken.
            pub const ALL: &[$name] = &[$($name::$step,)*];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $($name::$step => $words,)* })
            }
        }
    };
}

#[cfg(feature = "file")]
pub(crate) mod file;
#[cfg(feature = "git")]
pub(crate) mod git;
#[cfg(any(feature = "sql", feature = "object"))]
pub(crate) mod write;
