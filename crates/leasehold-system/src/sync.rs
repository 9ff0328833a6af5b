//! A mutex that has no poisoned state.
//!
//! Promise: `lock` always gives what is inside. The command aborts on a panic, and what tests leave behind after one is theirs to
//! judge. Non-promise: it is not for asynchronous code that waits while it holds the lock; see `tokio::sync::Mutex`.

pub use std::sync::MutexGuard;
use std::sync::PoisonError;

/// [`std::sync::Mutex`], without the error of its `lock`.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex with this inside.
    pub const fn new(inside: T) -> Self {
        Mutex(std::sync::Mutex::new(inside))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until nobody else holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
