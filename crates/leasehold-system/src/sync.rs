//! A mutex that has no poisoned state.
//!
//! Promise: `lock` always returns the contents. The command aborts on a panic; a
//! test has to judge for itself what a panic left behind. Non-promise: it is not for
//! asynchronous code that waits while it holds the lock; see `tokio::sync::Mutex`.

pub use std::sync::MutexGuard;
use std::sync::PoisonError;

/// [`std::sync::Mutex`], without the error of its `lock`.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex that protects this value.
    pub const fn new(inside: T) -> Self {
        Mutex(std::sync::Mutex::new(inside))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
