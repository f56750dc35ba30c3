//! What goes wrong does so as asked, and only then.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Api, envelopes, with_fake};
use tokio::time::Instant;
use wsm_fake_e2b::{Ending, FakeE2b, Fault, On, Operation, Options, SandboxState, Unreachable, What};

/// Five messages: its start, one piece of output on each stream, its end, and that of the stream. Two on one stream could come
/// as one.
const SAY: &[&str] = &["sh", "-c", "echo one; echo two >&2; exit 3"];

/// Waits for what comes sooner or later; the test as a whole has a limit.
async fn eventually(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn push(fake: &FakeE2b, on: Operation, what: What) {
    fake.faults().push(Fault::new(on, what));
}

#[test]
fn answers_are_made_up_or_lost() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        let create = || api.request("POST", "/v2/sandboxes").json(&json!({ "templateID": "base", "timeout": 60 }));
        fake.faults().push(Fault::answer_with(Operation::Create, 429, ("Retry-After", "2"), "slow down"));
        let answer = create().send().await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &"2".parse().unwrap()));
        assert_eq!(answer.text().await.unwrap(), "slow down");
        assert_eq!(fake.sandboxes().all().len(), 0);

        // Carried out, and nobody knows.
        for ending in [Ending::Reset, Ending::Close] {
            push(fake, Operation::Create, What::Lose { applied: true, ending });
            create().send().await.unwrap_err();
        }
        let (headers, body) = (Vec::new(), "upstream request timeout".to_owned());
        push(fake, Operation::Create, What::Answer { status: 504, headers, body, applied: true });
        assert_eq!(create().send().await.unwrap().status(), 504);
        assert_eq!(fake.sandboxes().all().len(), 3);

        push(fake, Operation::Create, What::Lose { applied: false, ending: Ending::Reset });
        create().send().await.unwrap_err();
        push(fake, Operation::Create, What::Lose { applied: true, ending: Ending::Hang });
        tokio::select! {
            answer = create().send() => panic!("{answer:?}"),
            () = eventually(|| fake.sandboxes().all().len() == 4) => {}
        }

        push(fake, Operation::Create, What::DelayAnswer { ms: 200 });
        let before = Instant::now();
        assert_eq!(create().send().await.unwrap().status(), 201);
        assert!(before.elapsed() >= Duration::from_millis(200));
        assert!(fake.faults().left().is_empty());
        let statuses: Vec<_> = fake.requests().of(Operation::Create).iter().map(|request| request.status).collect();
        assert_eq!(statuses, [Some(429), None, None, Some(504), None, None, Some(201)]);
    });
}

#[test]
fn lists_are_wrong() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.insert(0, api.create(json!({})).await.id);
        }
        let list = async |query: &str| {
            let answer = api.request("GET", &format!("/v2/sandboxes?limit=2{query}")).send().await.unwrap();
            let token = answer.headers().get("x-next-token").map(|token| token.to_str().unwrap().to_owned());
            let page: Vec<Value> = answer.json().await.unwrap();
            (page.iter().map(|one| one["sandboxID"].as_str().unwrap().to_owned()).collect::<Vec<_>>(), token)
        };
        let (page, token) = list("").await;
        assert_eq!(page, ids[..2]);
        let second = format!("&nextToken={}", token.unwrap());
        assert_eq!(list(&second).await, (ids[2..].to_vec(), None));
        push(fake, Operation::List, What::EmptyList);
        assert_eq!(list("").await, (vec![], None));
        push(fake, Operation::List, What::WithoutNextToken);
        assert_eq!(list("").await, (ids[..2].to_vec(), None));
        push(fake, Operation::List, What::RepeatNextToken);
        let (page, again) = list("").await;
        assert_eq!(page, ids[..2]);
        assert_eq!(list(&format!("&nextToken={}", again.unwrap())).await.0, ids[..2]);
        push(fake, Operation::List, What::ReverseList);
        assert_eq!(list("").await.0, [ids[1].clone(), ids[0].clone()]);
        push(fake, Operation::List, What::HideFromList { id: ids[0].clone() });
        assert_eq!(list("").await.0, ids[1..2]);
        // The second page only.
        fake.faults().push(Fault::answer(Operation::List, 500, "").skip(1));
        list("").await;
        assert_eq!(api.ask("GET", &format!("/v2/sandboxes?limit=2{second}"), Value::Null).await.0, 500);
    });
}

#[test]
fn what_connect_gives_is_not_what_it_should_be() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        let sandbox = api.create(json!({})).await;
        let id = &sandbox.id;
        let path = |name: &str| fake.sandboxes().path(id, &format!("/home/user/{name}")).unwrap();
        let pause = async || api.ask("POST", &format!("/sandboxes/{id}/pause"), json!({})).await.0;
        let connect = async || api.ask("POST", &format!("/v2/sandboxes/{id}/connect"), json!({})).await;
        std::fs::write(path("old"), "").unwrap();
        fake.sandboxes().checkpoint(id).unwrap();
        std::fs::write(path("new"), "").unwrap();
        assert_eq!(pause().await, 204);
        push(fake, Operation::Connect, What::RollBack);
        assert_eq!(connect().await.0, 201);
        let (events, _) = sandbox.start(&["sh", "-c", "ls /home/user; test ! -e /home/user/new"]).await;
        assert_eq!(events.last().unwrap(), &(2, json!({})));
        assert_eq!(events[events.len() - 2].1["event"]["end"]["status"], "exit status 0");
        assert!(path("old").exists() && !path("new").exists());

        push(fake, Operation::Connect, What::OtherId);
        let (status, other) = connect().await;
        assert!(status == 200 && other["sandboxID"] != **id);
        push(fake, Operation::Connect, What::WithoutAccessToken);
        assert_eq!(connect().await.1.get("envdAccessToken"), None);

        assert_eq!(pause().await, 204);
        push(fake, Operation::Connect, What::EnvdDown { times: 2, says: Unreachable::PortClosed });
        assert_eq!(connect().await.0, 201);
        for status in [502, 502, 204] {
            assert_eq!(sandbox.health().await.0, status);
        }
        push(fake, Operation::Get, What::Answer { status: 404, headers: vec![], body: String::new(), applied: false });
        for status in [404, 200] {
            assert_eq!(api.ask("GET", &format!("/sandboxes/{id}"), Value::Null).await.0, status);
        }
        // Killed, and back.
        push(fake, Operation::Kill, What::Resurrect { ms: 2000 });
        assert_eq!(api.ask("DELETE", &format!("/sandboxes/{id}"), Value::Null).await.0, 204);
        assert_eq!(api.ask("GET", &format!("/sandboxes/{id}"), Value::Null).await.0, 404);
        eventually(|| fake.sandboxes().get(id).is_some_and(|it| it.state == SandboxState::Running)).await;
        assert_eq!(sandbox.health().await.0, 204);
    });
}

#[test]
fn streams_break_off() {
    with_fake(Options::default(), async |fake| {
        let sandbox = Api::new(fake).create(json!({})).await;
        let (events, is_proper) = sandbox.start(SAY).await;
        assert!(is_proper && events.len() == 5, "{events:?}");

        for (ending, is_proper) in [(Ending::Eof, true), (Ending::Close, false), (Ending::Reset, false)] {
            push(fake, Operation::Start, What::TruncateEvents { after: 2, ending });
            let (events, proper) = sandbox.start(SAY).await;
            assert_eq!((events.len(), proper), (2, is_proper), "{ending:?}");
            push(fake, Operation::Start, What::TruncateBytes { after: 40, ending });
            let (events, proper) = sandbox.start(SAY).await;
            assert_eq!((events.len(), proper), (1, false), "{ending:?}");
        }
        push(fake, Operation::Start, What::TruncateEvents { after: 2, ending: Ending::Canceled });
        assert_eq!(sandbox.start(SAY).await.0[2].1["error"]["code"], "canceled");
        push(fake, Operation::Start, What::TruncateEvents { after: 1, ending: Ending::Hang });
        tokio::time::timeout(Duration::from_millis(500), sandbox.start(SAY)).await.unwrap_err();
        let (code, message) = ("unavailable".to_owned(), "m".to_owned());
        push(fake, Operation::Start, What::EndWithError { after: 3, code, message });
        let (events, _) = sandbox.start(SAY).await;
        assert_eq!((events.len(), &events[3].1["error"]["code"]), (4, &json!("unavailable")));
    });
}

#[test]
fn streams_look_unusual() {
    with_fake(Options::default(), async |fake| {
        let sandbox = Api::new(fake).create(json!({})).await;
        push(fake, Operation::Start, What::WithoutEnd);
        let (events, _) = sandbox.start(SAY).await;
        assert_eq!(events.len(), 4);
        assert_eq!(events[3], (2, json!({})));
        push(fake, Operation::Start, What::WithoutExitCode);
        let (events, _) = sandbox.start(SAY).await;
        assert!(events[3].1["event"]["end"].is_object(), "{events:?}");
        assert_eq!(events[3].1["event"]["end"].get("exitCode"), None);
        push(fake, Operation::Start, What::Keepalives { count: 2 });
        let (events, _) = sandbox.start(SAY).await;
        assert_eq!(events.iter().filter(|(_, message)| message["event"]["keepalive"].is_object()).count(), 8);
        push(fake, Operation::Start, What::UnknownEvent);
        assert_eq!(sandbox.start(SAY).await.0.len(), 6);
        push(fake, Operation::Start, What::Gzip);
        let flags: Vec<u8> = sandbox.start(SAY).await.0.iter().map(|(flags, _)| *flags).collect();
        assert_eq!(flags, [1, 1, 1, 1, 3]);
        for what in [What::Pieces { bytes: 1 }, What::AtOnce] {
            push(fake, Operation::Start, what);
            assert_eq!(sandbox.start(SAY).await.0.len(), 5);
        }
    });
}

#[test]
fn open_streams_end_with_the_sandbox() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        let sandbox = api.create(json!({})).await;
        let pause = format!("/sandboxes/{}/pause", sandbox.id);
        let connect = format!("/v2/sandboxes/{}/connect", sandbox.id);
        let open = async || {
            let mut response = sandbox.start_request(&["sleep", "1000"]).send().await.unwrap();
            assert!(response.chunk().await.unwrap().is_some());
            response
        };
        let stream = open().await;
        assert_eq!(api.ask("POST", &pause, json!({})).await.0, 204);
        let (events, is_proper) = envelopes(stream).await;
        assert!(is_proper && events[0].1["error"]["code"] == "canceled", "{events:?}");
        assert_eq!(api.ask("POST", &connect, json!({})).await.0, 201);
        // The command went on.
        assert_eq!(fake.sandboxes().get(&sandbox.id).unwrap().processes, 1);

        let stream = open().await;
        push(fake, Operation::Pause, What::OpenStreams(Ending::Reset));
        assert_eq!(api.ask("POST", &pause, json!({ "memory": false })).await.0, 204);
        assert_eq!(envelopes(stream).await, (vec![], false));
        assert_eq!(api.ask("POST", &connect, json!({})).await.0, 201);
        assert_eq!(fake.sandboxes().get(&sandbox.id).unwrap().processes, 0);

        let stream = open().await;
        fake.sandboxes().kill_envd(&sandbox.id).unwrap();
        assert_eq!(envelopes(stream).await, (vec![], false));
        let (status, error) = sandbox.health().await;
        assert_eq!((status, &error["message"]), (502, &json!("The sandbox is running but port is not open")));

        let other = api.create(json!({})).await;
        let mut stream = other.start_request(&["sleep", "1000"]).send().await.unwrap();
        stream.chunk().await.unwrap();
        fake.sandboxes().vanish(&other.id).await.unwrap();
        assert_eq!(envelopes(stream).await, (vec![], false));
        let (status, error) = other.health().await;
        assert_eq!((status, &error["message"]), (502, &json!("The sandbox was not found")));
    });
}

#[test]
fn files_are_cut_short() {
    with_fake(Options::default(), async |fake| {
        let sandbox = Api::new(fake).create(json!({})).await;
        let upload = async || {
            let request =
                sandbox.request("POST", "/files?path=/tmp/f").header("Content-Type", "application/octet-stream");
            support::read(request.body("0123456789").send().await.unwrap()).await
        };
        let download = async || sandbox.request("GET", "/files?path=/tmp/f").send().await.unwrap();
        assert_eq!(upload().await.0, 200);
        push(fake, Operation::Download, What::TruncateBytes { after: 4, ending: Ending::Close });
        let response = download().await;
        assert_eq!(response.content_length(), Some(10));
        response.bytes().await.unwrap_err();
        push(fake, Operation::Upload, What::DiskFull { after: 3 });
        let (status, error) = upload().await;
        assert_eq!((status, &error["code"]), (507, &json!(507)));
        assert_eq!(download().await.text().await.unwrap(), "012");
        push(fake, Operation::Stat, What::Set { field: "entry".to_owned(), value: json!({ "name": "f" }) });
        let stat = async || sandbox.call("filesystem.Filesystem/Stat", json!({ "path": "/tmp/f" })).await.1;
        assert_eq!(stat().await, json!({ "entry": { "name": "f" } }));
        assert_eq!(stat().await["entry"]["size"], "3");
    });
}

#[test]
fn other_processes_can_ask_for_faults() {
    with_fake(Options::default(), async |fake| {
        let api = Api::new(fake);
        let faults = json!([
            { "on": "any", "what": ["empty_list"] },
            { "on": { "path": { "method": "GET", "prefix": "/sandboxes" } }, "times": 0, "what": [{ "delay": { "ms": 1 } }] },
        ]);
        assert_eq!(api.ask("POST", "/__fake/faults", faults).await.0, 204);
        assert_eq!(fake.faults().left()[0], Fault::new(On::Any, What::EmptyList));
        assert_eq!(api.ask("POST", "/__fake/faults", json!({ "on": "any", "what": ["nonsense"] })).await.0, 400);
        assert_eq!(api.ask("DELETE", "/__fake/faults", Value::Null).await.0, 204);
        assert!(fake.faults().left().is_empty());
        let sandbox = api.create(json!({})).await;
        let (_, all) = api.ask("GET", "/__fake/sandboxes", Value::Null).await;
        assert_eq!(all[0]["id"], *sandbox.id);
        let expire = format!("/__fake/sandboxes/{}/expire", sandbox.id);
        assert_eq!(api.ask("POST", &expire, Value::Null).await.0, 204);
        assert_eq!(api.ask("POST", &expire, Value::Null).await.0, 400);
        // What asks the fake about itself is no request.
        let (_, requests) = api.ask("GET", "/__fake/requests", Value::Null).await;
        assert_eq!(requests.as_array().unwrap().len(), 1);
    });
}
