//! Model lists and the routes that never touch the model.

use std::sync::Arc;

use serde_json::json;

use crate::client::{exchange, get};
use crate::fake::{Fake, Server};

#[tokio::test(flavor = "multi_thread")]
async fn the_list_has_the_loaded_model() {
    let server = Server::saying(&[]).await;
    insta::assert_snapshot!(format!("{:#}", get(server.address, "/v1/models").await.json()), @r#"
    {
      "object": "list",
      "data": [
        {
          "id": "org/model:q1",
          "object": "model",
          "created": 1700000000,
          "owned_by": "tokonoma",
          "aliases": [
            "model-q1"
          ],
          "status": {
            "value": "ready"
          },
          "max_model_len": 64,
          "meta": {
            "name": "Scripted",
            "architecture": "qwen3",
            "n_params": 1000,
            "size": 500,
            "n_ctx_train": 128,
            "n_embd": 8,
            "n_vocab": 300
          }
        }
      ]
    }
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_found_by_every_name_escaped_or_not() {
    let server = Server::saying(&[]).await;
    let listed = get(server.address, "/v1/models").await.json()["data"][0].clone();
    for name in ["org/model:q1", "org%2Fmodel%3Aq1", "org%2fmodel:q1", "model-q1", "default"] {
        let answer = get(server.address, &format!("/v1/models/{name}")).await;
        assert_eq!((answer.status, answer.json()), (200, listed.clone()), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_star_among_the_names_stands_for_every_other_name() {
    let server = Server::start_with(Arc::new(Fake::saying(&[])), |state| {
        state.models[0].aliases.push("*".to_owned());
    })
    .await;
    for name in ["gpt-4o", "*", "a/b:c", "org/model:q1"] {
        let answer = get(server.address, &format!("/v1/models/{name}")).await;
        assert_eq!((answer.status, &answer.json()["id"]), (200, &json!("org/model:q1")), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_model_has_no_description() {
    let server = Server::saying(&[]).await;
    for name in ["nope", "org/model", "org/model:q1/", "model-q1%00", "..%2f..%2fetc"] {
        let answer = get(server.address, &format!("/v1/models/{name}")).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (404, &json!("model_not_found")),
            "{name}"
        );
    }
    let answer = get(server.address, "/v1/models/%ff").await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("not_found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_on_every_customary_path() {
    let server = Server::saying(&[]).await;
    for path in ["/health", "/v1/health", "/healthz", "/livez", "/readyz"] {
        let answer = get(server.address, path).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "ok"})), "{path}");
    }
    assert_eq!(exchange(server.address, "HEAD", "/health", &[], b"").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_and_the_version_say_what_runs() {
    let server = Server::saying(&[]).await;
    assert_eq!(
        get(server.address, "/").await.body,
        "Tokonoma is running; to clients of its API, Ollama is running\n"
    );
    assert_eq!(
        get(server.address, "/version").await.json(),
        json!({"version": env!("CARGO_PKG_VERSION")})
    );
}
