# What is written for llama-server's CPU image: its own settings, and an operator's.
FROM ghcr.io/ggml-org/llama.cpp:server
ENV LLAMA_ARG_HOST=0.0.0.0
ENV LLAMA_ARG_MODEL=model.gguf
ENV LLAMA_ARG_PORT=8080
ENV LLAMA_ARG_ENDPOINT_METRICS=1
HEALTHCHECK CMD [ "curl", "-f", "http://localhost:8080/health" ]
ENTRYPOINT [ "/app/llama-server" ]
CMD [ "--ctx-size", "4096", "--parallel", "2", "--jinja", "--cont-batching", "--no-webui" ]
