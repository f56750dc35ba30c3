//! The description of the API, for programs and for people.

use std::sync::Arc;

use axum::{Router, response::Html, routing::get};
use bytes::Bytes;
use http::header;
use serde_json::Value;
use utoipa::openapi::OpenApi;

pub(super) fn routes(document: &OpenApi) -> Router {
    // Plain data, which can always be written.
    let json = Bytes::from(serde_json::to_vec(document).unwrap_or_default());
    let page: Arc<str> = page(&serde_json::to_value(document).unwrap_or_default()).into();
    Router::new()
        .route("/openapi.json", get(async move || ([(header::CONTENT_TYPE, "application/json")], json.clone())))
        .route("/docs", get(async move || Html(page.to_string())))
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
    details{border:1px solid #8884;border-radius:.4rem;margin:.4rem 0;padding:.4rem .8rem}\
    summary{cursor:pointer}code,pre{font-family:ui-monospace,monospace;font-size:.9em}\
    pre{background:#8881;padding:.6rem;border-radius:.4rem;overflow:auto}\
    .method{display:inline-block;min-width:4.5rem;font-weight:600}td{padding:.1rem 1rem .1rem 0;vertical-align:top}";

/// One page without scripts and without anything from elsewhere.
fn page(document: &Value) -> String {
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>wsm</title><style>{STYLE}</style><h1>wsm</h1>{}<p>The same for programs: \
         <a href=/openapi.json>/openapi.json</a>.</p>",
        paragraphs(document["info"]["description"].as_str().unwrap_or_default())
    );
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = tag["name"].as_str().unwrap_or_default();
        html.push_str(&format!(
            "<h2>{}</h2>{}",
            escape(name),
            paragraphs(tag["description"].as_str().unwrap_or_default())
        ));
        for (path, methods) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in methods.as_object().into_iter().flatten() {
                let tags = operation["tags"].as_array();
                if tags.is_some_and(|tags| tags.iter().any(|tag| tag == name)) {
                    html.push_str(&describe(method, path, operation, document));
                }
            }
        }
    }
    html
}

fn describe(method: &str, path: &str, operation: &Value, document: &Value) -> String {
    let text = |value: &Value| escape(value.as_str().unwrap_or_default());
    let mut html = format!(
        "<details><summary><code><span class=method>{}</span>{}</code> {}</summary>{}",
        method.to_uppercase(),
        escape(path),
        text(&operation["summary"]),
        paragraphs(operation["description"].as_str().unwrap_or_default())
    );
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !parameters.is_empty() {
        html.push_str("<table>");
        for parameter in parameters {
            let optional = if parameter["required"] == true { "" } else { ", optional" };
            html.push_str(&format!(
                "<tr><td><code>{}</code><td>{}{optional}<td>{}",
                text(&parameter["name"]),
                text(&parameter["in"]),
                text(&parameter["description"])
            ));
        }
        html.push_str("</table>");
    }
    html.push_str(&schema("Body", &operation["requestBody"], document));
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        html.push_str(&format!("<p><code>{}</code> {}</p>", escape(status), text(&response["description"])));
        if status.starts_with('2') {
            html.push_str(&schema("", response, document));
        }
    }
    html.push_str("</details>");
    html
}

/// The fields of a body, for each media type that has a schema of a name.
fn schema(title: &str, body: &Value, document: &Value) -> String {
    let mut html = String::new();
    for (media, content) in body["content"].as_object().into_iter().flatten() {
        html.push_str(&format!("<p>{} <code>{}</code></p>", escape(title), escape(media)));
        let schema = inlined(&content["schema"], document);
        if schema.is_object() {
            html.push_str(&format!(
                "<pre>{}</pre>",
                escape(&serde_json::to_string_pretty(&schema).unwrap_or_default())
            ));
        }
    }
    html
}

/// A schema with what it refers to in its place. Ours do not refer to themselves.
fn inlined(schema: &Value, document: &Value) -> Value {
    match schema {
        Value::Object(fields) => match fields.get("$ref").and_then(Value::as_str) {
            Some(path) => inlined(document.pointer(path.trim_start_matches('#')).unwrap_or(&Value::Null), document),
            None => fields.iter().map(|(key, value)| (key.clone(), inlined(value, document))).collect(),
        },
        Value::Array(items) => items.iter().map(|item| inlined(item, document)).collect(),
        other => other.clone(),
    }
}

fn paragraphs(text: &str) -> String {
    text.split("\n\n").filter(|text| !text.is_empty()).map(|text| format!("<p>{}</p>", escape(text))).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}
