//! Files and directories.

use axum::body::Body;
use bytes::Bytes;
use http::Method;
use serde_json::json;
use wsm_core::{Error, ErrorKind, ManagerSettings};

use crate::support::{app, app_with};

#[tokio::test]
async fn what_is_put_is_got_and_can_be_deleted() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let uri = format!("/workspace/files?{session}&path=a/b/%E6%8A%A5%20%C3%BC.txt");
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let made = ann.put(&uri, bytes.clone()).await;
    assert_eq!((made.status.as_u16(), &made.json()["size_bytes"]), (201, &json!(100_000)));
    assert_eq!(made.json()["path"], "a/b/报 ü.txt");
    assert_eq!(ann.put(&uri, bytes.clone()).await.status, 200, "replaced");
    let got = ann.get(&format!("{uri}&download=true")).await;
    assert!(got.body == bytes);
    assert_eq!(got.headers["content-length"], "100000");
    assert_eq!(got.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(got.headers["content-disposition"], "attachment; filename*=UTF-8''%E6%8A%A5%20%C3%BC.txt");
    assert_eq!(got.headers["x-content-type-options"], "nosniff");
    assert_eq!(ann.delete(&uri).await.status, 204);
    assert_eq!(ann.delete(&uri).await.problem().0, 404);
    assert_eq!(ann.get(&uri).await.problem().0, 404);
}

#[tokio::test]
async fn one_range_is_served() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let uri = format!("/workspace/files?{session}&path=f");
    ann.put(&uri, "0123456789").await;
    for (range, body, content_range) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=8-100", "89", "bytes 8-9/10"),
    ] {
        let reply = ann.clone().header("range", range).get(&uri).await;
        assert_eq!((reply.status.as_u16(), reply.text().as_str()), (206, body), "{range}");
        assert_eq!(reply.headers["content-range"], content_range);
        assert_eq!(reply.headers["content-length"], body.len().to_string().as_str());
    }
    for range in ["bytes=0-1,3-4", "lines=1-2", "bytes=4-2"] {
        let reply = ann.clone().header("range", range).get(&uri).await;
        assert_eq!((reply.status.as_u16(), reply.text().as_str()), (200, "0123456789"), "{range}");
    }
    let past = ann.clone().header("range", "bytes=10-").get(&uri).await;
    assert_eq!(past.problem(), (416, "range_not_satisfiable".into()));
    assert_eq!(past.headers["content-range"], "bytes */10");
    let head = ann.send(Method::HEAD, &uri, Body::empty()).await;
    assert_eq!((head.headers["content-length"].to_str().unwrap(), head.body.len()), ("10", 0));
}

#[tokio::test]
async fn a_refused_or_broken_upload_changes_nothing() {
    let app = app_with(ManagerSettings::default(), |mut config| {
        config.limits.max_upload_bytes = 100;
        config
    })
    .await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let uri = format!("/workspace/files?{session}&path=f");
    ann.put(&uri, "old").await;
    let announced = ann.clone().header("content-length", "101").put(&uri, vec![b'x'; 101]).await;
    assert_eq!(announced.problem(), (413, "too_large".into()));
    let pieces = (0..3).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 50])));
    let streamed = ann.put(&uri, Body::from_stream(futures::stream::iter(pieces))).await;
    assert_eq!(streamed.problem(), (413, "too_large".into()));
    let pieces = [Ok(Bytes::from_static(b"new")), Err(Error::new(ErrorKind::Backend, "the line went dead"))];
    let broken = ann.put(&uri, Body::from_stream(futures::stream::iter(pieces))).await;
    assert_eq!(broken.problem(), (422, "incomplete_body".into()));
    assert_eq!(ann.get(&uri).await.text(), "old");
    let names = ann.get(&format!("/workspace/directories?{session}")).await.json();
    assert_eq!(names["entries"].as_array().unwrap().len(), 1, "no half-written file is left: {names}");
}

#[tokio::test]
async fn directories_are_listed_in_the_documented_shape() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    ann.put(&format!("/workspace/files?{session}&path=d/x"), "12345").await;
    ann.put(&format!("/workspace/files?{session}&path=a.txt"), "1").await;
    let listing = ann.get(&format!("/workspace/directories?{session}")).await.json();
    let mut shape = listing.clone();
    for entry in shape["entries"].as_array_mut().unwrap() {
        let updated = entry.as_object_mut().unwrap().remove("updated_at").unwrap();
        assert!(updated.is_null() || updated.as_f64().unwrap() > 1e9, "{updated}");
    }
    let entries = json!([
        { "name": "a.txt", "is_dir": false, "size_bytes": 1 },
        { "name": "d", "is_dir": true, "size_bytes": null },
    ]);
    assert_eq!(shape, json!({ "path": ".", "entries": entries }));
    let listed = ann.get(&format!("/workspace/directories?{session}&path=d")).await.json();
    assert_eq!((&listed["path"], &listed["entries"][0]["name"]), (&json!("d"), &json!("x")));
    let file = ann.get(&format!("/workspace/directories?{session}&path=a.txt")).await;
    assert_eq!(file.problem(), (422, "not_a_directory".into()));
    assert_eq!(ann.get(&format!("/workspace/directories?{session}&path=no")).await.problem().0, 404);
    let directory = ann.get(&format!("/workspace/files?{session}&path=d")).await;
    assert_eq!(directory.problem(), (422, "is_a_directory".into()));
    let full = ann.delete(&format!("/workspace/files?{session}&path=d")).await;
    assert_eq!(full.problem(), (409, "directory_not_empty".into()));
    assert_eq!(ann.delete(&format!("/workspace/files?{session}&path=d&recursive=true")).await.status, 204);
}

#[tokio::test]
async fn paths_that_no_workspace_can_have_are_refused_before_anything_is_opened() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let long = "x".repeat(5000);
    for path in ["path=", "path=a%00b", &format!("path={long}")] {
        let uri = format!("/workspace/files?{session}&{path}");
        for reply in [ann.get(&uri).await, ann.put(&uri, "x").await, ann.delete(&uri).await] {
            assert_eq!((reply.status.as_u16(), reply.field().as_str()), (422, "path"), "{path}");
        }
    }
    assert_eq!(ann.get(&format!("/workspace/files?{session}")).await.field(), "path");
    assert_eq!(app.engine.creations(), 0);
    let outside = ann.get(&format!("/workspace/files?{session}&path=../../etc/passwd")).await;
    assert_eq!(outside.problem(), (403, "path_outside".into()));
}

#[tokio::test]
async fn a_token_downloads_its_one_file_without_headers() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    for path in ["f", "g"] {
        ann.put(&format!("/workspace/files?{session}&path={path}"), "secret").await;
    }
    let made = ann.post(&format!("/workspace/files/download-token?{session}&path=f"), &json!(null)).await;
    assert_eq!(made.status, 200);
    let token = made.json()["token"].as_str().unwrap().to_owned();
    assert!(made.json()["expires_at"].as_u64().unwrap() > 1_000_000_000);
    let browser = app.nobody().from(std::net::IpAddr::from([10, 0, 0, 1]));
    assert_eq!(browser.get(&format!("/workspace/files?{session}&path=f&token={token}")).await.text(), "secret");
    for uri in [
        format!("/workspace/files?{session}&path=g&token={token}"),
        format!("/workspace/files?{session}&path=f&token="),
        format!("/workspace/files?{session}&path=f&token=abc"),
        format!("/workspace/files?{session}&path=f"),
    ] {
        assert_eq!(browser.get(&uri).await.problem().0, 401, "{uri}");
    }
    let stranger =
        app.user("bob").post(&format!("/workspace/files/download-token?{session}&path=f"), &json!(null)).await;
    assert_eq!(stranger.problem().0, 404);
}

#[tokio::test]
async fn permissions_are_set_and_told() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let uri = format!("/workspace/files?{session}&path=f");
    assert_eq!(ann.put(&format!("{uri}&mode=750"), "x").await.status, 201);
    assert_eq!(ann.get(&uri).await.headers["x-file-mode"], "750");
    for mode in ["", "8", "1000", "0755x", "-1", "+7", "00000"] {
        let refused = ann.put(&format!("{uri}&mode={}", mode.replace('+', "%2B")), "y").await;
        assert_eq!((refused.status.as_u16(), refused.field().as_str()), (422, "mode"), "{mode:?}: {}", refused.text());
    }
    assert_eq!(ann.get(&uri).await.text(), "x");
}

#[tokio::test]
async fn a_directory_is_made_with_its_parents_and_only_once() {
    let app = app().await;
    let ann = app.user("ann");
    let session = ann.session("a").await;
    let uri = |path: &str| format!("/workspace/directories?{session}&path={path}");
    for _ in 0..2 {
        assert_eq!(ann.put(&uri("a/b"), "").await.status, 204);
    }
    assert_eq!(ann.get(&uri("a")).await.json()["entries"][0]["name"], "b");
    ann.put(&format!("/workspace/files?{session}&path=f"), "x").await;
    assert_eq!(ann.put(&uri("f"), "").await.problem().0, 409);
    assert_eq!(ann.put(&uri("../x"), "").await.problem(), (403, "path_outside".into()));
    assert_eq!(ann.put(&uri(""), "").await.field(), "path");
}
