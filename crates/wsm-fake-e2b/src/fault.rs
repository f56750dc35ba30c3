//! What can go wrong, and the queue of what shall.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::operation::Operation;

/// Which requests a fault is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum On {
    /// Every request.
    Any,
    /// Every request to the control plane.
    Control,
    /// Every request to the daemon of a sandbox.
    Envd,
    /// One operation.
    Operation(Operation),
    /// Any of these operations.
    Operations(Vec<Operation>),
    /// Whatever path begins so, with this method or any.
    Path {
        /// `GET`, for example. Any when there is none.
        method: Option<String>,
        /// How the path begins.
        prefix: String,
    },
}

impl From<Operation> for On {
    fn from(operation: Operation) -> Self {
        Self::Operation(operation)
    }
}

/// How a body or a connection ends that ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The body ends properly, for HTTP. Where its length was promised, that can only be `Close`.
    Eof,
    /// The connection is closed in the middle.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing comes any more, and nothing ends.
    Hang,
    /// An end-of-stream envelope says `canceled`. Only for streams; others are closed.
    Canceled,
}

/// What the proxy in front of a daemon says when it can not reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unreachable {
    /// 502 `The sandbox was not found`.
    NotFound,
    /// 502 `The sandbox is running but port is not open`.
    PortClosed,
    /// 502 and a page in HTML.
    Html,
    /// 502 and a line of text.
    Text,
    /// 409 `The sandbox is still transitioning`.
    Transitioning,
}

/// One thing that goes wrong with a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// This answer. When applied, after the request was carried out; else instead of that.
    Answer {
        /// The status.
        status: u16,
        /// Headers, such as `Retry-After`.
        #[serde(default)]
        headers: Vec<(String, String)>,
        /// The body as it is. One that is JSON gets no content type by itself.
        #[serde(default)]
        body: String,
        /// Whether the request is carried out nevertheless.
        #[serde(default)]
        applied: bool,
    },
    /// No answer: the connection ends or hangs. When applied, after the request was carried out.
    Lose {
        /// Whether the request is carried out.
        #[serde(default)]
        applied: bool,
        /// How. `Eof` and `Canceled` are taken as `Close`.
        ending: Ending,
    },
    /// The request is carried out this much later.
    Delay {
        /// Milliseconds.
        ms: u64,
    },
    /// The request is carried out at once, the answer comes this much later.
    DelayAnswer {
        /// Milliseconds.
        ms: u64,
    },
    /// The body ends after so many bytes.
    TruncateBytes {
        /// How many bytes come.
        after: u64,
        /// How it ends.
        ending: Ending,
    },
    /// A stream ends after so many messages; `start` counts.
    TruncateEvents {
        /// How many messages come.
        after: usize,
        /// How it ends.
        ending: Ending,
    },
    /// A stream ends with this error after so many messages.
    EndWithError {
        /// How many messages come.
        after: usize,
        /// The protocol's word, such as `unavailable`.
        code: String,
        /// For people.
        message: String,
    },
    /// A stream ends properly, but no `end` event came.
    WithoutEnd,
    /// The `end` event has no `exitCode`.
    WithoutExitCode,
    /// A body comes in pieces of so many bytes.
    Pieces {
        /// How many bytes at once.
        bytes: usize,
    },
    /// All messages of a stream come at once, when it has ended.
    AtOnce,
    /// So many keepalives come before every message but the first.
    Keepalives {
        /// How many.
        count: usize,
    },
    /// An event that nobody knows comes after the first message.
    UnknownEvent,
    /// Envelopes are compressed, also if the client did not ask.
    Gzip,
    /// A field of a JSON answer has another value. `null` takes it away.
    Set {
        /// The field's name.
        field: String,
        /// Its value.
        value: Value,
    },
    /// A list is empty.
    EmptyList,
    /// A page does not say that there is another one.
    WithoutNextToken,
    /// A page names itself as the next one.
    RepeatNextToken,
    /// A page is in the wrong order.
    ReverseList,
    /// A list does not have this sandbox.
    HideFromList {
        /// Its id.
        id: String,
    },
    /// Connect gives a sandbox with the files of its last checkpoint, or with none when there was none.
    RollBack,
    /// Connect gives a sandbox whose processes are gone.
    LoseProcesses,
    /// Create or connect answers with another id. The sandbox with that id does not exist.
    OtherId,
    /// Create or connect gives no access token, although one is needed.
    WithoutAccessToken,
    /// After create, connect or resume the daemon can not be reached so many times.
    EnvdDown {
        /// For how many requests.
        times: u32,
        /// What the proxy says.
        says: Unreachable,
    },
    /// After create, connect or resume the daemon can not be reached for this long.
    SlowStart {
        /// Milliseconds.
        ms: u64,
        /// What the proxy says.
        says: Unreachable,
    },
    /// Pause or kill ends open streams so.
    OpenStreams(Ending),
    /// What was killed comes back, as after a resume that was on its way.
    Resurrect {
        /// After so many milliseconds.
        ms: u64,
    },
    /// Pausing takes so long; it is visible as pausing meanwhile.
    SlowPause {
        /// Milliseconds.
        ms: u64,
    },
    /// An upload fails with 507 after so many bytes, which stay.
    DiskFull {
        /// How many bytes are written.
        after: usize,
    },
}

/// What goes wrong, with which requests, and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Which requests.
    pub on: On,
    /// Only of this sandbox.
    #[serde(default)]
    pub sandbox: Option<String>,
    /// So many of them go well before.
    #[serde(default)]
    pub skip: u32,
    /// How many go wrong. 0 is for all of them.
    #[serde(default = "once")]
    pub times: u32,
    /// All of this happens to the same request.
    pub what: Vec<What>,
}

fn once() -> u32 {
    1
}

impl Fault {
    /// One request of this kind goes wrong.
    pub fn new(on: impl Into<On>, what: What) -> Self {
        Self { on: on.into(), sandbox: None, skip: 0, times: 1, what: vec![what] }
    }

    /// An answer instead of the real one.
    pub fn answer(on: impl Into<On>, status: u16, body: impl Into<String>) -> Self {
        Self::new(on, What::Answer { status, headers: Vec::new(), body: body.into(), applied: false })
    }

    /// An answer instead of the real one, with a header.
    pub fn answer_with(on: impl Into<On>, status: u16, header: (&str, &str), body: impl Into<String>) -> Self {
        let headers = vec![(header.0.to_owned(), header.1.to_owned())];
        Self::new(on, What::Answer { status, headers, body: body.into(), applied: false })
    }

    /// The request is carried out, and its answer is lost.
    pub fn lose_answer(on: impl Into<On>) -> Self {
        Self::new(on, What::Lose { applied: true, ending: Ending::Reset })
    }

    /// So many requests go wrong. 0 is for all of them.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// All requests go wrong.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(0)
    }

    /// So many requests go well before.
    #[must_use]
    pub fn skip(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }

    /// Only with this sandbox.
    #[must_use]
    pub fn of(mut self, sandbox: impl Into<String>) -> Self {
        self.sandbox = Some(sandbox.into());
        self
    }

    /// Also this happens to the same request.
    #[must_use]
    pub fn and(mut self, what: What) -> Self {
        self.what.push(what);
        self
    }
}

/// The faults that are still to come. The first that is for a request happens to it, and no other one.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    queue: Arc<Mutex<Vec<Fault>>>,
}

impl Faults {
    /// Adds one at the end.
    pub fn push(&self, fault: Fault) {
        self.queue.lock().push(fault);
    }

    /// Takes all away.
    pub fn clear(&self) {
        self.queue.lock().clear();
    }

    /// Those that are still to come: what a test expected to happen, but did not.
    #[must_use]
    pub fn left(&self) -> Vec<Fault> {
        self.queue.lock().clone()
    }

    /// What shall happen to a request.
    pub(crate) fn take(&self, request: &Asked<'_>) -> Hits {
        let mut queue = self.queue.lock();
        let mut hit = None;
        for (index, fault) in queue.iter_mut().enumerate().filter(|(_, fault)| request.is_for(fault)) {
            if fault.skip == 0 {
                hit = Some(index);
                break;
            }
            fault.skip -= 1;
        }
        let Some(index) = hit else { return Hits::default() };
        let fault = &mut queue[index];
        let what = fault.what.clone();
        match fault.times {
            0 => {}
            1 => drop(queue.remove(index)),
            _ => fault.times -= 1,
        }
        Hits(what.into())
    }
}

/// What a fault may be for.
pub(crate) struct Asked<'a> {
    pub(crate) operation: Operation,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) sandbox: Option<&'a str>,
}

impl Asked<'_> {
    fn is_for(&self, fault: &Fault) -> bool {
        if fault.sandbox.is_some() && fault.sandbox.as_deref() != self.sandbox {
            return false;
        }
        match &fault.on {
            On::Any => true,
            On::Control => !self.operation.is_envd(),
            On::Envd => self.operation.is_envd(),
            On::Operation(operation) => *operation == self.operation,
            On::Operations(operations) => operations.contains(&self.operation),
            On::Path { method, prefix } => {
                method.as_deref().is_none_or(|method| method == self.method) && self.path.starts_with(prefix)
            }
        }
    }
}

/// What happens to one request. Travels with it, since some of it is up to who carries it out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hits(Arc<[What]>);

impl Hits {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &What> {
        self.0.iter()
    }

    pub(crate) fn has(&self, what: &What) -> bool {
        self.0.contains(what)
    }

    pub(crate) fn open_streams(&self) -> Option<Ending> {
        self.iter().find_map(|what| if let What::OpenStreams(ending) = what { Some(*ending) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(operation: Operation) -> Asked<'static> {
        Asked { operation, method: "GET", path: "/sandboxes/ia", sandbox: Some("ia") }
    }

    #[test]
    fn faults_happen_in_turn_as_often_as_they_say() {
        let faults = Faults::default();
        faults.push(Fault::answer(Operation::Get, 503, "").skip(1).times(2));
        faults.push(Fault::new(On::Control, What::EmptyList));
        let hits = || faults.take(&asked(Operation::Get)).iter().next().cloned();
        // The first goes past what skips it, to the other one.
        assert_eq!(hits(), Some(What::EmptyList));
        assert!(matches!(hits(), Some(What::Answer { status: 503, .. })));
        assert!(hits().is_some());
        assert_eq!(hits(), None);
        assert!(faults.left().is_empty());
    }

    #[test]
    fn a_fault_may_be_for_one_sandbox_or_for_a_path() {
        let faults = Faults::default();
        faults.push(Fault::answer(Operation::Get, 404, "").of("other").always());
        let path = On::Path { method: Some("POST".into()), prefix: "/sandboxes".into() };
        faults.push(Fault::answer(path, 500, ""));
        assert!(faults.take(&asked(Operation::Get)).iter().next().is_none());
        assert_eq!(faults.left().len(), 2);
    }

    #[test]
    fn faults_are_readable_as_json() {
        let text = r#"{"on":{"operation":"pause"},"what":[{"lose":{"applied":true,"ending":"reset"}}]}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        assert_eq!(fault, Fault::lose_answer(Operation::Pause));
        let text = r#"{"on":"any","times":0,"what":["empty_list",{"delay":{"ms":5}}]}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        assert_eq!(fault, Fault::new(On::Any, What::EmptyList).always().and(What::Delay { ms: 5 }));
    }
}
