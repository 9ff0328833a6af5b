//! Enums whose variants each have one word, declared once.
//!
//! Promise: the words, what is displayed, the list of all variants and the enum cannot differ, because they are one list.
//! Non-promise: how serde writes a variant is set by the enum's own attributes.

/// Declares an enum, the list of its variants and the word of each.
#[macro_export]
macro_rules! words {
    ($(#[$about:meta])* $visible:vis enum $name:ident { $($(#[$what:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        $visible enum $name { $($(#[$what])* $variant,)* }

        impl $name {
            /// All variants, in the order in which they are declared and shown.
            pub const ALL: [$name; [$($word),*].len()] = [$($name::$variant),*];

            /// The word for this variant, in records, JSON and output.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
