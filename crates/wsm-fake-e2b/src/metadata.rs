//! The filter by metadata, which is encoded three times over.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

/// The pairs of a filter that was decoded once already, as the query was read. Decodes so many times in all.
pub(crate) fn filter(value: &str, decodings: usize) -> BTreeMap<String, String> {
    let whole = if decodings > 1 { decode(value) } else { value.to_owned() };
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if decodings > 2 { (decode(key), decode(value)) } else { (key.to_owned(), value.to_owned()) }
    };
    // The pairs are told apart before each is decoded on its own.
    whole.split('&').filter(|part| !part.is_empty()).map(pair).collect()
}

/// As in queries, where a plus is a space.
fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the official SDK sends for these pairs.
    const SENT: &str = "agentscope.workspace.id%3Dws%2525201%252F%2525C3%2525A4%26app%3Dprod";

    #[test]
    fn filters_are_decoded_as_often_as_they_are_encoded() {
        let once = decode(SENT);
        let filter = filter(&once, 3);
        let wanted = [("agentscope.workspace.id", "ws 1/ä"), ("app", "prod")];
        assert_eq!(filter, wanted.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn who_decodes_less_finds_less() {
        let once = decode(SENT);
        assert_ne!(filter(&once, 2)["agentscope.workspace.id"], "ws 1/ä");
        assert_eq!(filter(&once, 2)["app"], "prod");
    }
}
