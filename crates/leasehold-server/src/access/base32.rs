//! Bytes as text of lower-case letters and digits, five bits a character (RFC 4648, without padding).

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Appends the first `characters` characters of these bytes. Unused bits of the last character are zero.
pub fn append(text: &mut String, bytes: &[u8], characters: usize) {
    let bit = |index: usize| bytes.get(index / 8).map_or(0, |byte| byte >> (7 - index % 8) & 1);
    for character in 0..characters {
        let value = (0..5).fold(0, |value, at| value << 1 | bit(character * 5 + at));
        text.push(char::from(ALPHABET[usize::from(value)]));
    }
}

/// Whether a character is one of these.
pub fn is_digit(c: char) -> bool {
    u8::try_from(c).is_ok_and(|c| ALPHABET.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_encoding_of_the_rfc() {
        // From RFC 4648, section 10, without padding and in lower case.
        for (bytes, expected) in
            [("f", "my"), ("fo", "mzxq"), ("foo", "mzxw6"), ("foob", "mzxw6yq"), ("foobar", "mzxw6ytboi")]
        {
            let mut text = String::new();
            append(&mut text, bytes.as_bytes(), expected.len());
            assert_eq!(text, expected);
            assert!(text.chars().all(is_digit));
        }
    }
}
