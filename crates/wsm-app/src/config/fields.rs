//! Asks a type which keys it reads, so that an unknown one can be told apart and the nearest known one be named.

#![cfg_attr(
    not(any(feature = "local", feature = "e2b")),
    allow(dead_code, reason = "this build has no backend to ask")
)]

use serde::{Deserialize, Deserializer, de};

/// The names of the fields that `T` deserializes from; empty when it is not a plain struct.
pub(crate) fn field_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    // Always an error: the type is asked what it wants and then given nothing.
    let _ = T::deserialize(Asking { names: &mut names });
    names
}

struct Asking<'a> {
    names: &'a mut &'static [&'static str],
}

impl<'de> Deserializer<'de> for Asking<'_> {
    type Error = de::value::Error;

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.names = fields;
        Err(de::Error::custom("asked only for its fields"))
    }

    fn deserialize_any<V: de::Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("not a struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_tells_its_fields_and_nothing_else_does() {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        #[allow(dead_code, reason = "only its shape matters")]
        struct Options {
            basedir: String,
            #[serde(rename = "kill-grace")]
            kill_grace: u64,
        }
        assert_eq!(field_names::<Options>(), ["basedir", "kill-grace"]);
        assert!(field_names::<u8>().is_empty());
    }
}
