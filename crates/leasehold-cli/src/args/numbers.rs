//! Whole numbers within bounds, refused in the words of every other wrong value.

/// A number from `LOW` to `HIGH`.
pub fn within<const LOW: u32, const HIGH: u32>(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (LOW..=HIGH).contains(number));
    number.ok_or_else(|| format!("use {LOW} to {HIGH}"))
}
