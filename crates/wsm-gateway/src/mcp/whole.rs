//! Keeps results as their servers gave them.
//!
//! The SDK reads a result into its own model of MCP, and what that does not know is gone. So a result is put, as a whole,
//! where the model allows any JSON, and is taken out again on the other side of the SDK. (An HTTP server that answers with
//! plain JSON instead of events is read by the SDK alone, and keeps what the model knows.)

use rmcp::model::ServerResult;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, value::RawValue};

/// Marks what was put there.
const MARK: &str = "wsm/whole";
/// How much longer a message becomes, at most.
pub(super) const MOST_WRAPPING: usize = 256;

#[derive(Deserialize)]
struct Message<'m> {
    #[serde(borrow)]
    id: &'m RawValue,
    #[serde(borrow)]
    result: &'m RawValue,
}

/// What tells the results of calls and of lists of tools from others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    content: Option<IgnoredAny>,
    structured_content: Option<IgnoredAny>,
    is_error: Option<IgnoredAny>,
    tools: Option<IgnoredAny>,
}

/// The message with its result put away, if it holds one of a call or of a list of tools.
pub(super) fn wrapped(message: &[u8]) -> Option<String> {
    let Message { id, result } = serde_json::from_slice(message).ok()?;
    let Fields { content, structured_content, is_error, tools } = serde_json::from_str(result.get()).ok()?;
    content.or(structured_content).or(is_error).or(tools)?;
    // No id that was ever sent is longer.
    let id = Some(id.get()).filter(|id| id.len() < 64)?;
    let result = format!(r#"{{"content":[],"structuredContent":{},"_meta":{{"{MARK}":true}}}}"#, result.get());
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
}

/// A result as the server gave it. None for what is no object.
pub(super) fn unwrapped(result: ServerResult) -> Option<Map<String, Value>> {
    let value = match result {
        ServerResult::CallToolResult(result) if result.meta.as_ref().is_some_and(|meta| meta.contains_key(MARK)) => {
            result.structured_content?
        }
        other => serde_json::to_value(other).ok()?,
    };
    match value {
        Value::Object(result) => Some(result),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{JsonRpcMessage, ServerJsonRpcMessage};
    use serde_json::json;

    use super::*;

    #[test]
    fn results_of_calls_and_lists_survive_what_the_sdk_does_not_know() {
        for result in [
            json!({"content": [{"type": "hologram", "depth": 3, "annotations": {"new": 1}}], "more": [1, {"a": null}]}),
            json!({"structuredContent": 7, "content": []}),
            json!({"isError": true}),
            json!({"tools": [{"name": "a", "inputSchema": {}, "execution": {"taskSupport": "forbidden"}}], "nextCursor": "2"}),
        ] {
            let message = json!({"jsonrpc": "2.0", "id": 7, "result": result}).to_string();
            let wrapped = wrapped(message.as_bytes()).unwrap();
            assert!(wrapped.len() <= message.len() + MOST_WRAPPING);
            let read: ServerJsonRpcMessage = serde_json::from_str(&wrapped).unwrap();
            let JsonRpcMessage::Response(response) = read else { panic!("{wrapped}") };
            assert_eq!(unwrapped(response.result).map(Value::Object), Some(result), "{wrapped}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_sdk() {
        for message in [
            json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-11-25", "capabilities": {}}}),
            json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
            json!({"jsonrpc": "2.0", "id": 1, "result": [{"content": []}]}),
            json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "content"}}),
            json!({"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {"content": []}}),
            json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
        ] {
            assert_eq!(wrapped(message.to_string().as_bytes()), None, "{message}");
        }
        assert_eq!(wrapped(b"{\"id\":1,\"result\":{\"content\":["), None);
    }
}
