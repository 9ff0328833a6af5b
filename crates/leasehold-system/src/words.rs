//! Enums whose variants each have one word, declared once.
//!
//! Promise: the word, the list of all variants and the enum cannot differ, because they are one list. Non-promise: what serde
//! makes of a variant is the enum's own attribute.

/// Declares an enum, the list of its variants and the word of each.
#[macro_export]
macro_rules! words {
    ($(#[$about:meta])* $visible:vis enum $name:ident { $($(#[$what:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        $visible enum $name { $($(#[$what])* $variant,)* }

        impl $name {
            /// All of them, in the order in which they are declared and shown.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$variant),*];

            /// The word for it, in records, JSON and output.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}
