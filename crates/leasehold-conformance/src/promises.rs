//! The promises, by topic.

pub(crate) mod along;
pub(crate) mod erasing;
pub(crate) mod faults;
pub(crate) mod leases;
pub(crate) mod listing;
pub(crate) mod swapping;
pub(crate) mod timing;
