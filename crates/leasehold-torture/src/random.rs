//! Numbers from a seed: the same seed, the same plan.

/// SplitMix64, which needs no more than a seed and is good enough for choosing.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// At least `from`, and less than `to` unless that is no more.
    pub(crate) const fn between(&mut self, from: u64, to: u64) -> u64 {
        let span = to.saturating_sub(from);
        from + self.next() % if span > 0 { span } else { 1 }
    }
}

/// A number that is always the same for this text.
pub(crate) fn of_text(text: &str) -> u64 {
    let hash = text
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    Random::new(hash).next()
}
