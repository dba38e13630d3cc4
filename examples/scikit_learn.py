"""The same with scikit-learn: classifiers of three hospitals are added, and one is taken out again.

pip install "fedstats-app[sklearn]"
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedstats_app.sklearn import Fed3RClassifier


def main() -> dict[str, float]:
    """Return the accuracy of one hospital, of all, and of all but one."""
    X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
    a, b, c = (Fed3RClassifier().fit(X[site::3], y[site::3]) for site in range(3))
    models = {"one": a, "all": a + b + c, "without b": a + b + c - b}
    accuracy = {name: model.score(X_test, y_test) for name, model in models.items()}
    # Anything that scikit-learn does with classifiers works, such as a pipeline.
    accuracy["in a pipeline"] = make_pipeline(StandardScaler(), Fed3RClassifier()).fit(X, y).score(X_test, y_test)
    for name, share in accuracy.items():
        print(f"{name}: {100 * share:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
