//! An MCP server over stdin and stdout that can be asked to misbehave, for tests. It knows nothing of any SDK.
//!
//! Its first argument is how it starts: `well`, or a way not to.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a server for tests panics when it is misused, and sleeps in threads of its own"
)]

use std::{
    collections::HashSet,
    io::{BufRead, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

/// What the threads of the server share.
#[derive(Default)]
struct Server {
    cancelled: Mutex<HashSet<i64>>,
    count: AtomicU64,
    has_grown: AtomicBool,
    lists: AtomicU64,
}

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    match mode.as_str() {
        "well" | "deaf" | "stubborn" => {}
        "crashes-at-start" => {
            eprintln!("loading\ncannot find module `left-pad`");
            std::process::exit(3);
        }
        "hangs-at-start" => pause_for_ever(),
        "prints-only-garbage" => {
            write(b"Welcome to the server!\nIt listens.\n");
            pause_for_ever();
        }
        "floods-at-start" => flood(150 << 20),
        other => panic!("the mode {other:?} is not known"),
    }
    let server = Arc::new(Server::default());
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let is_deaf = mode == "deaf" && message["method"] == "notifications/initialized";
        server.take(message);
        if is_deaf {
            pause_for_ever();
        }
    }
    if mode == "stubborn" {
        pause_for_ever();
    }
    record("the input has ended");
}

fn pause_for_ever() -> ! {
    loop {
        thread::sleep(Duration::from_secs(1000));
    }
}

fn write(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

fn send(message: &Value) {
    write(format!("{message}\n").as_bytes());
}

/// Leaves a note for the test.
fn record(what: &str) {
    if let Some(path) = std::env::var_os("FIXTURE_RECORD") {
        let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
        // In one piece, since threads do this at once.
        file.write_all(format!("{what}\n").as_bytes()).unwrap();
    }
}

fn flood(bytes: usize) {
    let line = format!("{}\n", "debug ".repeat(1000));
    let mut stderr = std::io::stderr().lock();
    for _ in 0..bytes / line.len() {
        stderr.write_all(line.as_bytes()).unwrap();
    }
    writeln!(stderr, "the flood is over").unwrap();
}

fn tool(name: &str) -> Value {
    json!({
        "name": name,
        "description": format!("the tool {name}"),
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": true, "newHint": 1},
        "execution": {"taskSupport": "forbidden"},
    })
}

fn text(text: impl Into<String>) -> Value {
    json!({"content": [{"type": "text", "text": text.into()}]})
}

impl Server {
    fn take(self: &Arc<Self>, message: Value) {
        let Some(id) = message["id"].as_i64() else {
            if message["method"] == "notifications/cancelled" {
                let id = message["params"]["requestId"].as_i64().unwrap();
                self.cancelled.lock().insert(id);
                record(&format!("cancelled: {}", message["params"]["reason"]));
            }
            return;
        };
        match message["method"].as_str().unwrap() {
            "initialize" => {
                let result = json!({
                    "protocolVersion": message["params"]["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": true}},
                    "serverInfo": {"name": "fixture", "version": "1.2.3"},
                });
                send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
            }
            "tools/list" => self.list(id, message["params"]["cursor"].as_str()),
            "tools/call" => {
                let server = Arc::clone(self);
                thread::spawn(move || {
                    let (name, arguments) = (&message["params"]["name"], &message["params"]["arguments"]);
                    match server.call(id, name.as_str().unwrap(), arguments) {
                        Ok(Some(result)) => send(&json!({"result": result, "jsonrpc": "2.0", "id": id})),
                        Ok(None) => {}
                        Err(error) => send(&json!({"jsonrpc": "2.0", "id": id, "error": error})),
                    }
                });
            }
            _ => send(&json!({"jsonrpc": "2.0", "id": id, "result": {}})),
        }
    }

    /// Two tools a page.
    fn list(&self, id: i64, cursor: Option<&str>) {
        let mut names = vec!["echo", "add", "sleep", "count", "crash"];
        if self.has_grown.load(Ordering::SeqCst) {
            names.push("late");
        }
        let from: usize = cursor.map_or(0, |cursor| cursor.parse().unwrap());
        if from == 0 {
            self.lists.fetch_add(1, Ordering::SeqCst);
        }
        let tools: Vec<Value> = names.iter().skip(from).take(2).copied().map(tool).collect();
        let mut result = json!({"tools": tools});
        if from + 2 < names.len() {
            result["nextCursor"] = json!((from + 2).to_string());
        }
        send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn call(&self, id: i64, name: &str, arguments: &Value) -> Result<Option<Value>, Value> {
        let number = |name: &str| arguments[name].as_u64().unwrap_or(0);
        let size = || usize::try_from(number("bytes")).unwrap();
        Ok(Some(match name {
            "echo" => text(arguments["text"].as_str().unwrap_or_default()),
            "length" => text(arguments["text"].as_str().unwrap_or_default().len().to_string()),
            "add" => json!({"content": [], "structuredContent": {"sum": number("a") + number("b")}}),
            "mixed" => json!({
                "content": [
                    {"type": "text", "text": "one", "annotations": {"audience": ["user"], "priority": 0.5}},
                    {"type": "image", "data": "AAECAw==", "mimeType": "image/png"},
                    {"type": "audio", "data": "AAECAw==", "mimeType": "audio/wav"},
                    {"type": "resource_link", "uri": "file:///a", "name": "a"},
                    {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "text/plain", "text": "b"}},
                    {"type": "hologram", "depth": 3},
                ],
                "structuredContent": {"list": [1, 2.5, null, true], "big": 9_007_199_254_740_993_u64},
                "isError": true,
                "_meta": {"example.org/cost": 7},
            }),
            "null" => json!({"content": [], "structuredContent": null}),
            "count" => text((self.count.fetch_add(1, Ordering::SeqCst) + 1).to_string()),
            "lists" => text(self.lists.load(Ordering::SeqCst).to_string()),
            "pid" => text(std::process::id().to_string()),
            "environ" => text(std::env::var(arguments["name"].as_str().unwrap()).unwrap_or_default()),
            "cwd" => text(std::env::current_dir().unwrap().to_str().unwrap()),
            "big" => text("x".repeat(size())),
            "sleep" => {
                record("sleeping");
                for _ in 0..number("ms").div_ceil(10) {
                    thread::sleep(Duration::from_millis(10));
                    if self.cancelled.lock().contains(&id) {
                        return Ok(None);
                    }
                }
                text("slept")
            }
            "crash" => {
                eprintln!("crashing as asked");
                std::process::exit(i32::try_from(number("code")).unwrap());
            }
            "flood" => {
                flood(size());
                text("flooded")
            }
            "garbage" => {
                write(b"what is this\n{\"jsonrpc\":\n[1,2\n{\"hello\":\"world\"}\n");
                text("still here")
            }
            // No answer to anything.
            "giant" => {
                write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":\"");
                for _ in 0..size() >> 20 {
                    write(&vec![b'x'; 1 << 20]);
                }
                write(b"\"}}\n");
                text("still here")
            }
            "endless" => {
                for _ in 0..size() >> 20 {
                    write(&vec![b'y'; 1 << 20]);
                }
                write(b"\n");
                text("still here")
            }
            "grow" => {
                self.has_grown.store(true, Ordering::SeqCst);
                send(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
                text("grown")
            }
            "silent" => return Ok(None),
            "refuse" => return Err(json!({"code": -32000, "message": "not today"})),
            _ => return Err(json!({"code": -32602, "message": format!("unknown tool: {name}")})),
        }))
    }
}
